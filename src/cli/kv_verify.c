/* `hearth kv verify` and `gc`: what is wrong in the directory, or in the store that boxes share, and what is too much.
 * They may run beside a server: it treats a missing file like an evicted one, and a miss costs computation, nothing
 * else.
 *
 * What does not verify is quarantined in the directory, and removed from a store. A store's budget is its own
 * maxmemory, by which it evicts; gc removes what eviction leaves of an item. */
#include "cli/kv_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- verify ---- */

/* What a verification found. */
struct found {
    uint64_t items, bytes, count[KV_UNREADABLE + 1];
    uint64_t gone; /* headers whose state the store has evicted */
};
struct verify {
    struct kv *kv;
    uint64_t total_bytes;
    struct found found;
};

static bool add_bytes(void *user, const struct hearth_file *file) {
    ((struct verify *)user)->total_bytes += file->bytes;
    return true;
}

/* Verifies a payload, and frees it. Without the key of an encrypted one only its checksum. */
static enum hearth_format_verdict check_payload(const struct kv *kv, const struct hearth_format_info *info,
                                                struct hearth_buf *payload) {
    struct hearth_buf state = {0};
    enum hearth_format_verdict verdict;
    if (info->readable) {
        verdict = hearth_format_open(info, kv->seal, payload, &state, NULL);
    } else {
        verdict = hearth_checksum(payload->data, payload->len) == info->payload_checksum ? HEARTH_FORMAT_GOOD
                                                                                         : HEARTH_FORMAT_WRONG_PAYLOAD;
    }
    hearth_buf_finish(payload);
    hearth_buf_finish(&state);
    return verdict;
}

/* Reads and checks the payload of a file with a good header. */
static enum kv_state check_file(struct kv *kv, struct kv_head *head, const char **cause) {
    struct hearth_buf payload = {0};
    enum hearth_format_verdict verdict = HEARTH_FORMAT_SHORT;
    const bool whole = hearth_transfer_append(&head->in, &payload, head->info.payload_bytes, false);
    const int error = whole ? 0 : errno;
    if (whole) {
        verdict = check_payload(kv, &head->info, &payload);
    }
    hearth_buf_finish(&payload);
    errno = error;
    *cause = hearth_format_verdict_text(verdict);
    return error != 0 || verdict == HEARTH_FORMAT_NOMEM ? KV_UNREADABLE
           : verdict == HEARTH_FORMAT_GOOD              ? hearth_kv_state(head)
                                                        : KV_DAMAGED;
}

static void say_unreadable(const struct hearth_file_id *id, const char *cause) {
    char hex[33];
    hearth_digest_hex(id->name, hex);
    (void)hearth_complain(1, "%s/%.2s/%s: %s", id->model.hex, hex, hex + 2, cause);
}

static bool verify_file(void *user, const struct hearth_file *file) {
    struct verify *verify = user;
    struct kv_head head;
    hearth_kv_head_open(verify->kv, &file->id, &head);
    if (head.err != HEARTH_ERR_NOT_FOUND) {
        enum kv_state state = hearth_kv_state(&head);
        const char *cause =
            head.err == HEARTH_ERR_STATE ? "it is no file of this user" : hearth_format_verdict_text(head.verdict);
        if (state == KV_READABLE || state == KV_SEALED) {
            state = check_file(verify->kv, &head, &cause);
        }
        verify->found.items++;
        verify->found.count[state]++;
        if (state == KV_DAMAGED) {
            hearth_file_quarantine(verify->kv->directory, &file->id, cause);
        } else if (state == KV_UNREADABLE) {
            say_unreadable(&file->id, errno != 0 ? strerror(errno) : "cannot be read");
        }
    }
    hearth_kv_head_close(&head);
    verify->found.bytes += file->bytes;
    hearth_show_progress("verifying", verify->found.bytes, verify->total_bytes, true);
    return true;
}

static bool total_model(void *user, struct hearth_model_id model) {
    struct verify *verify = user;
    (void)hearth_directory_walk(verify->kv->directory, model, -1, add_bytes, verify);
    return true;
}

static bool verify_model(void *user, struct hearth_model_id model) {
    struct verify *verify = user;
    if (hearth_directory_walk(verify->kv->directory, model, -1, verify_file, verify) != HEARTH_OK) {
        verify->found.count[KV_UNREADABLE]++;
        (void)hearth_complain(1, "%s: cannot be read to the end", model.hex);
    }
    return true;
}

/* Prints what was found. Returns an exit status. */
static int print_found(const struct kv *kv, const struct found *found) {
    const bool store = kv->remote != NULL;
    const uint64_t sealed = found->count[KV_SEALED], other = found->count[KV_OTHER_VERSION];
    const uint64_t damaged = found->count[KV_DAMAGED], unreadable = found->count[KV_UNREADABLE];
    const int status = damaged + unreadable > 0;
    const struct {
        uint64_t n;
        const char *text;
    } rest[] = {{sealed, "sealed (checksums match; --kv-key FILE verifies them)"},
                {other, "of another version of hearth"},
                {found->gone, "evicted by the store (gc removes what is left)"},
                {damaged, store ? "damaged: removed" : "damaged: quarantined in bad/"},
                {unreadable, "cannot be read"}};
    hearth_show_progress_end();
    if (kv->options.json) {
        return hearth_show_json(HEARTH_SHOW_MEMBERS({store ? "items" : "files", found->items}, {"bytes", found->bytes},
                                                    {"good", found->count[KV_READABLE]}, {"damaged", damaged},
                                                    {"sealed", sealed}, {"other_version", other},
                                                    {"unreadable", unreadable}, {"evicted", found->gone})) != 0 ||
               status;
    }
    (void)printf("%s, %s: %s good",
                 hearth_show_number(found->items, store ? "item" : "file", store ? "items" : "files").text,
                 hearth_show_bytes(found->bytes).text, hearth_show_count(found->count[KV_READABLE]).text);
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        if (rest[i].n > 0) {
            (void)printf(", %s %s", hearth_show_count(rest[i].n).text, rest[i].text);
        }
    }
    (void)putchar('\n');
    return status;
}

static bool verify_item(void *user, const struct hearth_remote_listed *listed) {
    struct verify *verifying = user;
    struct hearth_remote_list *store = verifying->kv->remote;
    struct kv_head head;
    struct hearth_buf payload = {0};
    hearth_kv_head_listed(verifying->kv, listed, &head);
    enum kv_state state = hearth_kv_state(&head);
    verifying->found.items++;
    verifying->found.bytes += head.file_bytes;
    bool gone = false;
    if (state == KV_READABLE || state == KV_SEALED) {
        const int err = hearth_remote_list_read(store, &head.place, &payload);
        const bool empty = err != HEARTH_OK || head.info.payload_bytes == 0;
        const enum hearth_format_verdict verdict =
            empty ? HEARTH_FORMAT_GOOD : check_payload(verifying->kv, &head.info, &payload);
        gone = err == HEARTH_ERR_NOT_FOUND;
        state = (err != HEARTH_OK && !gone) || verdict == HEARTH_FORMAT_NOMEM ? KV_UNREADABLE
                : verdict == HEARTH_FORMAT_GOOD                               ? state
                                                                              : KV_DAMAGED;
    }
    if (gone) {
        verifying->found.gone++;
    } else {
        verifying->found.count[state]++;
    }
    if (state == KV_DAMAGED) {
        (void)hearth_remote_list_remove(store, &head.place);
    }
    hearth_buf_finish(&payload);
    hearth_kv_head_close(&head);
    return true;
}

static int verify_store(struct kv *kv) {
    struct verify verifying = {.kv = kv};
    if (hearth_remote_list_walk(kv->remote, verify_item, &verifying) != HEARTH_OK) {
        return hearth_complain(1, "cannot read %s: %s", hearth_kv_place(kv), hearth_remote_list_trouble(kv->remote));
    }
    const int status = print_found(kv, &verifying.found);
    const char *trouble = verifying.found.count[KV_UNREADABLE] > 0 ? hearth_remote_list_trouble(kv->remote) : "";
    return *trouble ? hearth_complain(1, "%s: %s", hearth_kv_place(kv), trouble) : status;
}

int hearth_kv_verify(struct kv *kv) {
    struct verify v = {.kv = kv};
    if (kv->remote) {
        return verify_store(kv);
    }
    if (hearth_directory_models(kv->directory, total_model, &v) != HEARTH_OK ||
        hearth_directory_models(kv->directory, verify_model, &v) != HEARTH_OK) {
        return hearth_complain(1, "cannot read %s", hearth_directory_path(kv->directory));
    }
    return print_found(kv, &v.found);
}

/* ---- gc ---- */

uint64_t hearth_kv_budget(const struct kv *kv, uint64_t bytes) {
    return kv->options.budget_mib >= 0 ? (uint64_t)kv->options.budget_mib << 20
                                       : (hearth_directory_free_bytes(kv->directory) + bytes) / 5;
}

static void show_gc(void *user, uint64_t done, uint64_t total) {
    (void)user;
    hearth_show_progress("looking", done, total, false);
}

struct gc_state {
    uint64_t removed, to_remove;
};

static void show_removed(void *user, const struct hearth_file *file) {
    struct gc_state *state = user;
    state->removed += file->bytes;
    hearth_show_progress("removing", state->removed, state->to_remove, true);
}

static int by_name(const void *x, const void *y) {
    return memcmp(x, y, sizeof(struct hearth_digest));
}

struct names {
    struct hearth_digest *names;
    size_t n;
};

static bool is_known(void *user, struct hearth_model_id model, struct hearth_digest name) {
    const struct names *names = user;
    (void)model;
    return names->n > 0 && bsearch(&name, names->names, names->n, sizeof name, by_name) != NULL;
}

static bool note_names(const struct kv_view *view, struct names *names) {
    size_t n = 0;
    for (size_t m = 0; m < view->model_n; m++) {
        n += view->models[m].n;
    }
    names->names = malloc((n + 1) * sizeof *names->names);
    for (size_t m = 0; names->names && m < view->model_n; m++) {
        for (size_t i = 0; i < view->models[m].n; i++) {
            names->names[names->n++] = view->models[m].items[i].place.name;
        }
    }
    if (names->names) {
        qsort(names->names, names->n, sizeof *names->names, by_name);
    }
    return names->names != NULL;
}

struct leftovers {
    struct kv *kv;
    uint64_t removed;
};

/* A header whose state the store has evicted. */
static bool remove_gone(void *user, const struct hearth_remote_listed *listed) {
    struct leftovers *leftovers = user;
    struct kv_head head;
    hearth_kv_head_listed(leftovers->kv, listed, &head);
    const enum kv_state state = hearth_kv_state(&head);
    if ((state == KV_READABLE || state == KV_SEALED) &&
        hearth_remote_list_idle_s(leftovers->kv->remote, &head.place) == -1) {
        leftovers->removed += hearth_remote_list_remove(leftovers->kv->remote, &head.place) == HEARTH_OK;
    }
    hearth_kv_head_close(&head);
    return true;
}

static int gc_store(struct kv *kv) {
    struct leftovers leftovers = {.kv = kv};
    struct kv_view view = {0};
    struct names names = {0};
    uint64_t parts = 0, bytes = 0;
    int status = hearth_kv_load(kv, &view) ? 0 : 1;
    if (status == 0 && !note_names(&view, &names)) {
        status = hearth_complain(1, "out of memory");
    }
    if (status == 0 && (hearth_remote_list_walk(kv->remote, remove_gone, &leftovers) != HEARTH_OK ||
                        hearth_remote_list_sweep(kv->remote, is_known, &names, &parts, &bytes) != HEARTH_OK)) {
        status = hearth_complain(1, "%s: %s", hearth_kv_place(kv), hearth_remote_list_trouble(kv->remote));
    }
    if (status == 0 && kv->options.json) {
        status = hearth_show_json(HEARTH_SHOW_MEMBERS({"removed_headers", leftovers.removed}, {"removed_parts", parts},
                                                      {"removed_bytes", bytes}));
    } else if (status == 0) {
        (void)printf("removed %s without state, %s without a header (%s); what the store may take is its maxmemory\n",
                     hearth_show_number(leftovers.removed, "header", "headers").text,
                     hearth_show_number(parts, "part", "parts").text, hearth_show_bytes(bytes).text);
    }
    free(names.names);
    hearth_kv_view_finish(&view);
    return status;
}

int hearth_kv_gc(struct kv *kv) {
    if (kv->remote) {
        return gc_store(kv);
    }
    struct hearth_directory_rest before, after;
    struct verify count = {.kv = kv};
    (void)hearth_directory_models(kv->directory, total_model, &count);
    hearth_directory_rest(kv->directory, &before);
    const uint64_t budget = hearth_kv_budget(kv, count.total_bytes);
    struct gc_state state = {.to_remove = count.total_bytes > budget ? count.total_bytes - budget : 1};
    struct hearth_gc gc = {.budget_bytes = budget, .removed = show_removed, .progress = show_gc, .user = &state};
    const int err = hearth_directory_gc(kv->directory, &gc);
    const int error = errno;
    const uint64_t bad = hearth_directory_empty_bad(kv->directory);
    hearth_directory_rest(kv->directory, &after);
    const uint64_t drafts = before.draft_files > after.draft_files ? before.draft_files - after.draft_files : 0;
    hearth_show_progress_end();
    int status = 0;
    if (kv->options.json) {
        status = hearth_show_json(HEARTH_SHOW_MEMBERS(
            {"files", gc.files}, {"bytes", gc.bytes}, {"budget_bytes", budget}, {"removed_files", gc.removed_files},
            {"removed_bytes", gc.removed_bytes}, {"removed_bad", bad}, {"removed_drafts", drafts}));
    } else {
        (void)printf("removed %s, %s; left %s, %s of a budget of %s\n",
                     hearth_show_number(gc.removed_files, "file", "files").text,
                     hearth_show_bytes(gc.removed_bytes).text, hearth_show_number(gc.files, "file", "files").text,
                     hearth_show_bytes(gc.bytes).text, hearth_show_bytes(budget).text);
        if (bad > 0 || drafts > 0) {
            (void)printf("removed leftovers: %s quarantined, %s half written\n", hearth_show_count(bad).text,
                         hearth_show_count(drafts).text);
        }
    }
    return err == HEARTH_OK
               ? status
               : hearth_complain(1, "not everything could be removed from %s: %s", hearth_directory_path(kv->directory),
                                 err == HEARTH_ERR_IO ? strerror(error) : hearth_err_text(err));
}
