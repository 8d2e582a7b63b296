/* GET / and the files that belong to it: the page that shows what the server does and why requests were slow.
 *
 * The files hold no data, so they need no key: the page asks for one and sends it with each request for data. The
 * Content-Security-Policy lets the page load its own files and ask its own server, and nothing else: no script or
 * style within the markup, no other origin, no frame around it. A browser's copy is valid as long as its ETag is.
 * Source: https://www.w3.org/TR/CSP3/; RFC 9110, section 13.1.2 (If-None-Match). */
#include "api/ui.h"

#include "api/internal.h"

#include <string.h>

static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                             "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

bool hearth_ui_get(struct hearth_api *api, struct hearth_http_exchange *exchange, const struct hearth_caller *caller,
                   struct hearth_api_error *error) {
    const char *path = hearth_http_path(exchange), *known = hearth_http_header(exchange, "if-none-match");
    const struct hearth_ui_file *file = hearth_ui_files;
    const struct hearth_ui_file *const end = file + hearth_ui_file_count;
    (void)caller;
    while (file < end && strcmp(file->path, path) != 0) {
        file++;
    }
    if (!api->params.ui || file == end) {
        return hearth_api_fail(error, 404, "unknown_url", NULL, "there is no GET %s here: the page is off (--ui off)",
                               path);
    }
    hearth_http_set_header(exchange, "Content-Security-Policy", policy);
    hearth_http_set_header(exchange, "Referrer-Policy", "no-referrer");
    hearth_http_set_header(exchange, "Cache-Control", "no-cache");
    hearth_http_set_header(exchange, "ETag", file->etag);
    const bool same = known != NULL && strstr(known, file->etag) != NULL;
    hearth_http_respond(exchange, same ? 304 : 200, file->content_type, file->bytes, same ? 0 : file->len);
    return true;
}
