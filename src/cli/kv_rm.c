/* `hearth kv rm`: removes conversations, or all of a model, from the directory or the store that boxes share. It may
 * run beside a server, for which what is missing was evicted. */
#include "cli/kv_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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
        (void)hearth_show_json(HEARTH_SHOW_MEMBERS({"conversations", conversations}, {"removed_files", files},
                                                   {"removed_bytes", bytes}, {"failed", failed}));
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
        removed->bytes += model->totals.bytes;
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
    struct kv_totals had = {0};
    uint64_t models = 0;
    for (size_t m = 0; m < view->model_n; m++) {
        if (meant(&view->models[m], prefix)) {
            models++;
            hearth_kv_totals_add(&had, &view->models[m].totals);
        }
    }
    if (!kv->options.all && models != 1) {
        return hearth_complain(1,
                               models == 0 ? "there is no model '%.40s' (see hearth kv ls)"
                                           : "several models begin with '%.40s': give more digits",
                               prefix);
    }
    if (!confirmed(kv, kv->options.all ? "everything" : "all of the model", had.files, had.bytes)) {
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
    return report_removed(kv, had.conversations, &removed);
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
