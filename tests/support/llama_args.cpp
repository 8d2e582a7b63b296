/* See llama_args.h. */
#include "support/llama_args.h"

#include <arg.h>

extern "C" unsigned llama_args_each(void (*each)(void *user, const char *name, int values, const char *env),
                                    void *user) {
    common_params params;
    const common_params_context context = common_params_parser_init(params, LLAMA_EXAMPLE_SERVER);
    for (const common_arg &arg : context.options) {
        const int values = arg.handler_str_str ? 2 : arg.handler_int || arg.handler_string ? 1 : 0;
        for (const char *name : arg.args) {
            each(user, name, values, arg.env ? arg.env : "");
        }
        for (const char *name : arg.args_neg) {
            each(user, name, values, "");
        }
    }
    return (unsigned)context.options.size();
}
