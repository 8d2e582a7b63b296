/* See serve_internal.h. The command line and the environment are read again with the file, so that the same source
 * wins as at the start. */
#include "cli/serve_internal.h"

#include "cli/keys.h"

#include <errno.h>
#include <string.h>

enum hearth_log_level hearth_serve_log_level(const char *name) {
    switch (name[0]) {
    case 'd': return HEARTH_LOG_DEBUG;
    case 'w': return HEARTH_LOG_WARN;
    case 'e': return HEARTH_LOG_ERROR;
    default: return HEARTH_LOG_INFO;
    }
}

static void tell(void *user, const char *name, bool is_live) {
    unsigned *changes = user;
    (*changes)++;
    hearth_log(HEARTH_LOG_INFO, "reload: %s %s", name,
               is_live ? "has changed" : "has changed, which takes effect at the next start");
}

/* Told at whichever level shows more. */
static void set_log_level(const char *before, const char *after) {
    const enum hearth_log_level old = hearth_serve_log_level(before), fresh = hearth_serve_log_level(after);
    if (old == fresh) {
        return;
    }
    hearth_log_set_lowest(old < fresh ? old : fresh);
    hearth_log(HEARTH_LOG_INFO, "reload: the log level is %s now, no longer %s", after, before);
    hearth_log_set_lowest(fresh);
}

static int take_keys(struct hearth_serve_live *live, const struct hearth_key_list *keys) {
    if (keys->count == 0 && live->key_count > 0) {
        hearth_log(HEARTH_LOG_WARN, "reload: no keys any more: that opens the server to everybody, and takes a "
                                    "restart; the old ones stay");
        return HEARTH_OK;
    }
    const int err = hearth_api_set_keys(live->api, keys->keys, keys->count);
    if (err == HEARTH_OK) {
        live->key_count = keys->count;
    }
    return err;
}

/* The certificate and its key, from the paths that are given now. */
static int take_certificate(const struct hearth_serve_live *live, const struct hearth_options *fresh,
                            struct hearth_errmsg *msg) {
    if (!live->options->ssl_cert_file) {
        return HEARTH_OK; /* TLS begins with the next start */
    }
    if (!fresh->ssl_cert_file || !fresh->ssl_key_file) {
        hearth_log(HEARTH_LOG_WARN, "reload: no certificate any more: to speak without TLS takes a restart; the old "
                                    "one stays");
        return HEARTH_OK;
    }
    return hearth_api_load_tls(live->api, fresh->ssl_cert_file, fresh->ssl_key_file, msg);
}

void hearth_serve_live_reload(struct hearth_serve_live *live) {
    struct hearth_options fresh;
    struct hearth_key_list keys = {0};
    struct hearth_errmsg msg = {""};
    enum hearth_options_ask ask;
    unsigned changes = 0;
    int err = hearth_options_parse(&fresh, live->argc, live->argv, &ask, &msg);
    err = err == HEARTH_OK ? hearth_key_list_read(&fresh, &keys, &msg) : err;
    err = err == HEARTH_OK ? take_certificate(live, &fresh, &msg) : err;
    err = err == HEARTH_OK ? take_keys(live, &keys) : err;
    if (err != HEARTH_OK) {
        const bool denied = hearth_serve_is_confined() && strstr(msg.text, strerror(EACCES));
        hearth_log(HEARTH_LOG_ERROR, "reload: %s%s: nothing was changed", msg.text[0] ? msg.text : hearth_err_text(err),
                   denied ? " (the process is confined to the files it was started with: docs/security.md)" : "");
        hearth_options_finish(&fresh);
        hearth_key_list_finish(&keys);
        return;
    }
    hearth_options_compare(live->options, &fresh, tell, &changes);
    hearth_service_tune(live->service, (uint32_t)fresh.queue, fresh.min_decode_tps);
    hearth_api_set_request_timeout(live->api, (int64_t)(fresh.request_timeout * 1e6));
    hearth_log(HEARTH_LOG_INFO, "reload: %zu keys, %u options have changed", live->key_count, changes);
    set_log_level(live->options->log_level, fresh.log_level);
    hearth_key_list_finish(&keys);
    hearth_options_finish(&live->taken);
    live->taken = fresh;
    live->options = &live->taken;
}

void hearth_serve_live_finish(struct hearth_serve_live *live) {
    hearth_options_finish(&live->taken);
}
