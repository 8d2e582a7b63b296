/* Small helpers over jansson. A value that could not be made is NULL all the way up: json_pack() and the set
 * functions refuse NULL; members that were dropped on the way are noted (base/memory.h). So memory is checked once,
 * where the whole is written. */
#include "api/internal.h"

#include <math.h>
#include <string.h>

json_t *hearth_api_json_real(double value) {
    return json_real(isfinite(value) ? value : 0.0);
}

json_t *hearth_api_json_text(const char *text) {
    return text != NULL ? hearth_json_text(text, strlen(text)) : NULL;
}

bool hearth_api_json_write(json_t *value, struct hearth_buf *out) {
    bool ok =
        value != NULL && !hearth_memory_refused() && hearth_json_print(value, HEARTH_JSON_DUMP | JSON_ENCODE_ANY, out);
    json_decref(value);
    return ok;
}

json_t *hearth_api_json_read(const struct hearth_buf *text) {
    return text->len > 0 ? hearth_json_load((const char *)text->data, text->len, JSON_ALLOW_NUL, NULL) : NULL;
}
