/* The table of limits on a request, checked before a reply is computed.
 *
 * Agents send hundreds of messages and dozens of tools. The limits are far above that, and low enough that a request
 * within them is prepared in seconds and in a memory of some times its bytes. */
#ifndef HEARTH_API_LIMITS_H
#define HEARTH_API_LIMITS_H

#include <stdbool.h>
#include <stddef.h>

struct hearth_api_error;
struct hearth_body;

#define HEARTH_LIMIT_LEVELS_MOST 1024

/*    constant, name, the most, what is counted */
#define HEARTH_LIMIT_TABLE(X)                                                                     \
    X(LEVELS, levels, HEARTH_LIMIT_LEVELS_MOST, "levels of arrays and objects in each other")     \
    X(MESSAGES, messages, 100000, "messages, or items of an input or a conversation,")            \
    X(PARTS, content_parts, 100000, "parts of content, all messages together,")                   \
    X(CALLS, tool_calls, 100000, "tool calls, all messages together,")                            \
    X(TOOLS, tools, 512, "tools")                                                                 \
    X(TEMPLATE_VALUES, template_values, 4096, "values in chat_template_kwargs, of any kind,")     \
    X(MEMBERS, members, 1024, "members in one object of tools, schemas or chat_template_kwargs")  \
    X(ENUM_VALUES, enum_values, 10000, "values in the enums of tools and schemas, all together,") \
    X(SCHEMA_VALUES, schema_values, 200000, "values in tools and schemas, of any kind, together,")

enum hearth_limit {
#define X(constant, name, most, what) HEARTH_LIMIT_##constant,
    HEARTH_LIMIT_TABLE(X)
#undef X
        HEARTH_LIMITS
};

/* The values of a body may take so many times its bytes in memory, and this much more. */
#define HEARTH_LIMIT_MEMORY_TIMES 10
#define HEARTH_LIMIT_MEMORY_EXTRA ((size_t)64 << 20)

/* The value of a row. */
size_t hearth_limit_most(enum hearth_limit limit);

/* Fills the error of a request that exceeds a limit, with the limit and the number found; returns false. `param` may be
 * NULL. */
bool hearth_limits_fail(enum hearth_limit limit, size_t found, const char *param, struct hearth_api_error *error);

/* Checks a body before it is parsed, in one pass. The parser reports text that is no JSON. `body` (zeroed, or NULL) is
 * filled with the places of its messages, as far as they can be told apart. False: the error names the limit and what
 * was found. Threads: any. */
bool hearth_limits_check(const char *text, size_t len, struct hearth_body *body, struct hearth_api_error *error);

/* The same for what a small request expands to: `made` bytes, beside the values of its body of `body_bytes`. False: the
 * error names the limit. Threads: any. */
bool hearth_limits_answer(size_t body_bytes, size_t made, struct hearth_api_error *error);

/* The memory that the values of a body will take, which also estimates the work. Units: bytes. Threads: any. */
size_t hearth_limits_estimate(const char *text, size_t len);

#endif
