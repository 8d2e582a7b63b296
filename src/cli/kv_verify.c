/* `hearth kv verify`, `gc` and `rm`: the commands that change the directory. They may run beside a server: it treats
 * a missing file like an evicted one, and a miss costs computation, nothing else. */
#include "cli/kv_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- verify ---- */

struct verify {
    struct kv *kv;
    uint64_t done_bytes, total_bytes;
    uint64_t files, good, damaged, sealed, other_version, unreadable;
};

static bool add_bytes(void *user, const struct hearth_file *file) {
    ((struct verify *)user)->total_bytes += file->bytes;
    return true;
}

/* Reads and checks the payload of a file with a good header. Without the key of a sealed one its checksum is all that
 * can be checked. */
static enum hearth_format_verdict check_payload(struct kv *kv, struct kv_head *head, bool *unreadable) {
    struct hearth_buf payload = {0}, state = {0};
    const struct hearth_format_info *info = &head->info;
    enum hearth_format_verdict verdict = HEARTH_FORMAT_NOMEM;
    if (hearth_buf_reserve(&payload, (size_t)info->payload_bytes)) {
        errno = 0;
        if (!hearth_kv_read(head->fd, payload.data, (size_t)info->payload_bytes, info->header_bytes)) {
            *unreadable = errno != 0;
            verdict = HEARTH_FORMAT_SHORT;
        } else if (!info->readable) {
            verdict = hearth_checksum(payload.data, (size_t)info->payload_bytes) == info->payload_checksum
                          ? HEARTH_FORMAT_GOOD
                          : HEARTH_FORMAT_WRONG_PAYLOAD;
        } else {
            payload.len = (size_t)info->payload_bytes;
            verdict = hearth_format_open(info, kv->seal, &payload, &state, NULL);
        }
    }
    hearth_buf_finish(&payload);
    hearth_buf_finish(&state);
    return verdict;
}

static void say_unreadable(const struct hearth_file_id *id, const char *cause) {
    char hex[33];
    hearth_digest_hex(id->name, hex);
    (void)hearth_complain(1, "%s/%.2s/%s: %s", id->model.hex, hex, hex + 2, cause);
}

static bool verify_file(void *user, const struct hearth_file *file) {
    struct verify *verify = user;
    struct kv_head head;
    bool unreadable = false;
    hearth_kv_head_open(verify->kv, &file->id, &head);
    enum kv_state state = hearth_kv_state(&head);
    const char *cause =
        head.err == HEARTH_ERR_STATE ? "it is no file of this user" : hearth_format_verdict_text(head.verdict);
    if (head.err != HEARTH_ERR_NOT_FOUND) {
        verify->files++;
        if (state == KV_READABLE || state == KV_SEALED) {
            const enum hearth_format_verdict verdict = check_payload(verify->kv, &head, &unreadable);
            cause = hearth_format_verdict_text(verdict);
            state = unreadable || verdict == HEARTH_FORMAT_NOMEM ? KV_UNREADABLE
                    : verdict == HEARTH_FORMAT_GOOD              ? state
                                                                 : KV_DAMAGED;
        }
        switch (state) {
        case KV_READABLE: verify->good++; break;
        case KV_SEALED: verify->sealed++; break;
        case KV_OTHER_VERSION: verify->other_version++; break;
        case KV_DAMAGED:
            verify->damaged++;
            hearth_file_quarantine(verify->kv->directory, &file->id, cause);
            break;
        case KV_UNREADABLE:
            verify->unreadable++;
            say_unreadable(&file->id, errno != 0 ? strerror(errno) : "cannot be read");
            break;
        }
    }
    hearth_kv_head_close(&head);
    verify->done_bytes += file->bytes;
    hearth_show_progress("verifying", verify->done_bytes, verify->total_bytes, true);
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
        verify->unreadable++;
        (void)hearth_complain(1, "%s: cannot be read to the end", model.hex);
    }
    return true;
}

int hearth_kv_verify(struct kv *kv) {
    if (kv->remote) {
        return hearth_kv_remote_verify(kv);
    }
    struct verify v = {.kv = kv};
    if (hearth_directory_models(kv->directory, total_model, &v) != HEARTH_OK ||
        hearth_directory_models(kv->directory, verify_model, &v) != HEARTH_OK) {
        return hearth_complain(1, "cannot read %s", hearth_directory_path(kv->directory));
    }
    hearth_show_progress_end();
    const int status = v.damaged + v.unreadable > 0;
    if (kv->options.json) {
        return hearth_show_json(json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "files", (json_int_t)v.files, "bytes",
                                          (json_int_t)v.done_bytes, "good", (json_int_t)v.good, "damaged",
                                          (json_int_t)v.damaged, "sealed", (json_int_t)v.sealed, "other_version",
                                          (json_int_t)v.other_version, "unreadable", (json_int_t)v.unreadable)) != 0 ||
               status;
    }
    (void)printf("%s, %s: %s good", hearth_show_number(v.files, "file", "files").text,
                 hearth_show_bytes(v.done_bytes).text, hearth_show_count(v.good).text);
    if (v.sealed > 0) {
        (void)printf(", %s sealed (checksums match; --kv-key FILE verifies them)", hearth_show_count(v.sealed).text);
    }
    if (v.other_version > 0) {
        (void)printf(", %s of another version of hearth", hearth_show_count(v.other_version).text);
    }
    if (v.damaged > 0) {
        (void)printf(", %s damaged: quarantined in bad/", hearth_show_count(v.damaged).text);
    }
    if (v.unreadable > 0) {
        (void)printf(", %s cannot be read", hearth_show_count(v.unreadable).text);
    }
    (void)printf("\n");
    return status;
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

int hearth_kv_gc(struct kv *kv) {
    if (kv->remote) {
        return hearth_kv_remote_gc(kv);
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
        status = hearth_show_json(json_pack(
            "{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "files", (json_int_t)gc.files, "bytes", (json_int_t)gc.bytes,
            "budget_bytes", (json_int_t)budget, "removed_files", (json_int_t)gc.removed_files, "removed_bytes",
            (json_int_t)gc.removed_bytes, "removed_bad", (json_int_t)bad, "removed_drafts", (json_int_t)drafts));
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

/* ---- rm ---- */

/* What came of it. */
struct removed {
    uint64_t files, bytes, failed;
    int error; /* errno of the last one that failed */
};

/* What all conversations that use it have asked to be removed goes. */
static void choose(void *user, struct kv_item *item) {
    if (++item->chosen == item->uses) {
        hearth_kv_list_add(user, item);
    }
}

static bool confirmed(const struct kv *kv, const char *what, uint64_t files, uint64_t bytes) {
    return kv->options.yes || hearth_show_asked("remove %s, %s in %s?", what, hearth_show_bytes(bytes).text,
                                                hearth_show_number(files, "file", "files").text);
}

static int report_removed(const struct kv *kv, uint64_t conversations, const struct removed *removed) {
    const uint64_t files = removed->files, bytes = removed->bytes, failed = removed->failed;
    if (kv->options.json) {
        (void)hearth_show_json(json_pack("{s:I, s:I, s:I, s:I}", "conversations", (json_int_t)conversations,
                                         "removed_files", (json_int_t)files, "removed_bytes", (json_int_t)bytes,
                                         "failed", (json_int_t)failed));
    } else {
        (void)printf("removed %s in %s, of %s\n", hearth_show_bytes(bytes).text,
                     hearth_show_number(files, "file", "files").text,
                     hearth_show_number(conversations, "conversation", "conversations").text);
    }
    return failed == 0 ? 0
                       : hearth_complain(1, "%" PRIu64 " %s could not be removed: %s", failed,
                                         hearth_plural(failed, "file", "files"), strerror(removed->error));
}

/* A conversation cannot go while another one goes on from its last page. */
static void say_what_stays(const struct kv_view *view, struct kv_conversation *const *chosen, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        char id[33];
        hearth_kv_id(view, chosen[i], id);
        if (chosen[i]->leaf->chosen < chosen[i]->leaf->uses) {
            (void)hearth_complain(0,
                                  "%s stays in part: another conversation goes on from inside its last page "
                                  "(name that one too to remove both)",
                                  id);
        }
    }
}

/* Removes the leaves first, so that what a server sees in between is whole conversations. */
static int deepest_first(const void *x, const void *y) {
    const struct kv_item *a = *(struct kv_item *const *)x, *b = *(struct kv_item *const *)y;
    return a->record.p1 > b->record.p1 ? -1 : a->record.p1 < b->record.p1;
}

static void remove_items(struct kv *kv, struct kv_list *removal, struct removed *removed) {
    if (removal->n > 0) {
        qsort(removal->items, removal->n, sizeof *removal->items, deepest_first);
    }
    for (size_t i = 0; i < removal->n; i++) {
        const struct kv_item *item = removal->items[i];
        const int err = kv->remote ? hearth_remote_list_remove(kv->remote, &item->place)
                                   : hearth_file_remove(kv->directory, &item->file.id);
        if (err == HEARTH_OK) {
            removed->files++;
            removed->bytes += item->file.bytes;
        } else if (err == HEARTH_ERR_STATE) {
            hearth_file_quarantine(kv->directory, &item->file.id, "a directory");
        } else if (err != HEARTH_ERR_NOT_FOUND) {
            removed->error = errno;
            removed->failed++;
        }
        hearth_show_progress("removing", i + 1, removal->n, false);
    }
    hearth_show_progress_end();
}

static int remove_conversations(struct kv *kv, struct kv_view *view) {
    struct kv_list removal = {0};
    struct removed removed = {0};
    uint64_t conversations = 0;
    int status = 0;
    struct kv_conversation **chosen = calloc((size_t)kv->arg_count, sizeof *chosen);
    if (!chosen) {
        return hearth_complain(1, "out of memory");
    }
    for (int i = 0; i < kv->arg_count && status == 0; i++) {
        struct kv_conversation *found = hearth_kv_find(view, kv->args[i]);
        bool known = false;
        for (uint64_t k = 0; k < conversations; k++) {
            known = known || chosen[k] == found; /* named twice */
        }
        if (!found) {
            status = 1;
        } else if (!known) {
            chosen[conversations++] = found;
            (void)hearth_kv_walk(view, found, choose, &removal);
        }
    }
    if (removal.nomem) {
        status = hearth_complain(1, "out of memory");
    }
    if (status == 0 && !confirmed(kv, hearth_show_number(conversations, "conversation", "conversations").text,
                                  removal.n, removal.bytes)) {
        status = hearth_complain(1, "nothing was removed");
    } else if (status == 0) {
        remove_items(kv, &removal, &removed);
        say_what_stays(view, chosen, conversations);
        status = report_removed(kv, conversations, &removed);
    }
    free(chosen);
    free(removal.items);
    return status;
}

/* The models that begin so; all with "". */
static bool meant(const struct kv_model *model, const char *prefix) {
    return strncmp(model->id.hex, prefix, strlen(prefix)) == 0;
}

static void remove_model(struct kv *kv, struct kv_model *model, struct removed *removed) {
    const int err = kv->remote ? hearth_remote_list_remove_model(kv->remote, model->id)
                               : hearth_directory_remove_model(kv->directory, model->id),
              error = errno;
    if (err == HEARTH_OK || err == HEARTH_ERR_NOT_FOUND) {
        removed->files += model->n;
        removed->bytes += model->bytes;
        return;
    }
    struct kv_list removal = {0};
    for (size_t k = 0; k < model->n && !removal.nomem; k++) {
        hearth_kv_list_add(&removal, &model->items[k]);
    }
    remove_items(kv, &removal, removed);
    free(removal.items);
    if (err == HEARTH_ERR_BUSY) {
        (void)hearth_complain(0,
                              "%.8s is in use: its transcripts stay, and its server will write again; stop it "
                              "and run this once more to remove them",
                              model->id.hex);
    } else if (err != HEARTH_ERR_INVALID) { /* where no model is known, files of items are hearth's, and no others */
        removed->error = removed->failed == 0 ? error : removed->error;
        removed->failed += removed->failed == 0;
    }
}

static int remove_models(struct kv *kv, struct kv_view *view) {
    const char *prefix = kv->options.all ? "" : kv->options.model;
    struct removed removed = {0};
    uint64_t models = 0, had_files = 0, had_bytes = 0, conversations = 0;
    for (size_t m = 0; m < view->model_n; m++) {
        if (meant(&view->models[m], prefix)) {
            models++;
            had_files += view->models[m].n;
            had_bytes += view->models[m].bytes;
        }
    }
    for (size_t i = 0; i < view->conversation_n; i++) {
        conversations += meant(&view->models[view->conversations[i].model], prefix);
    }
    if (!kv->options.all && models != 1) {
        return hearth_complain(1,
                               models == 0 ? "there is no model '%.40s' (see hearth kv ls)"
                                           : "several models begin with '%.40s': give more digits",
                               prefix);
    }
    if (!confirmed(kv, kv->options.all ? "everything" : "all of the model", had_files, had_bytes)) {
        return hearth_complain(1, "nothing was removed");
    }
    for (size_t m = 0; m < view->model_n; m++) {
        if (meant(&view->models[m], prefix)) {
            remove_model(kv, &view->models[m], &removed);
        }
    }
    if (kv->options.all && kv->directory) {
        (void)hearth_directory_empty_bad(kv->directory);
    }
    return report_removed(kv, conversations, &removed);
}

int hearth_kv_rm(struct kv *kv) {
    struct kv_view view;
    if (!hearth_kv_load(kv, &view)) {
        return 1;
    }
    const int status = kv->arg_count > 0 ? remove_conversations(kv, &view) : remove_models(kv, &view);
    hearth_kv_view_finish(&view);
    return status;
}
