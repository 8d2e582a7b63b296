/* The directory as it is now: every file's header is read, none of the payloads. Servers may write and evict
 * meanwhile; files that disappear before they are read are left out. */
#include "cli/kv_internal.h"

#include "base/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool hearth_kv_read(int fd, void *bytes, size_t len, uint64_t at) {
    uint8_t *to = bytes;
    while (len > 0) {
        const ssize_t n = pread(fd, to, len, (off_t)at);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            errno = n == 0 ? 0 : errno;
            return false;
        }
        to += n;
        at += (uint64_t)n;
        len -= (size_t)n;
    }
    return true;
}

/* Reads as much as the header turns out to be. False: errno, or out of memory (ENOMEM). */
static bool read_header(struct kv *kv, struct kv_head *head) {
    uint8_t block[HEARTH_FORMAT_BLOCK], *more = NULL;
    size_t len = head->file_bytes < sizeof block ? (size_t)head->file_bytes : sizeof block;
    if (!hearth_kv_read(head->fd, block, len, 0)) {
        return false;
    }
    head->verdict = hearth_format_read(block, len, kv->seal, &head->info);
    const size_t want = head->info.header_bytes;
    if (head->verdict != HEARTH_FORMAT_SHORT || want <= len || want > head->file_bytes ||
        want > HEARTH_FORMAT_HEADER_MAX) {
        return true;
    }
    hearth_format_info_finish(&head->info);
    more = malloc(want);
    if (!more) {
        errno = ENOMEM;
        return false;
    }
    const bool ok = hearth_kv_read(head->fd, more, want, 0);
    if (ok) {
        head->verdict = hearth_format_read(more, want, kv->seal, &head->info);
    }
    free(more);
    return ok;
}

void hearth_kv_head_open(struct kv *kv, const struct hearth_file_id *id, struct kv_head *head) {
    struct stat st;
    *head = (struct kv_head){.fd = -1, .verdict = HEARTH_FORMAT_SHORT};
    head->err = hearth_file_open(kv->directory, id, &head->fd);
    if (head->err != HEARTH_OK) {
        return;
    }
    if (fstat(head->fd, &st) != 0) {
        head->err = HEARTH_ERR_IO;
        return;
    }
    head->file_bytes = (uint64_t)st.st_size;
    if (!read_header(kv, head)) {
        head->err = errno == 0 ? HEARTH_OK : HEARTH_ERR_IO; /* 0: it became shorter, which hearth's files never do */
        head->verdict = HEARTH_FORMAT_SHORT;
        return;
    }
    const struct hearth_format_info *info = &head->info;
    const bool known = head->verdict == HEARTH_FORMAT_GOOD || head->verdict == HEARTH_FORMAT_WRONG_KEY;
    const struct hearth_model_id model = hearth_model_id(info->fingerprint, info->page_tokens);
    if (known && (!hearth_digest_equal(info->record.name, id->name) || info->record.kind != id->kind ||
                  strcmp(model.hex, id->model.hex) != 0)) {
        head->verdict = HEARTH_FORMAT_DAMAGED; /* another file's name */
    } else if (known && head->file_bytes < info->header_bytes + info->payload_bytes) {
        head->verdict = HEARTH_FORMAT_SHORT;
    } else if (known && head->file_bytes > info->header_bytes + info->payload_bytes) {
        head->verdict = HEARTH_FORMAT_DAMAGED;
    }
}

void hearth_kv_head_close(struct kv_head *head) {
    hearth_format_info_finish(&head->info);
    if (head->fd >= 0) {
        (void)close(head->fd);
        head->fd = -1;
    }
}

enum kv_state hearth_kv_state(const struct kv_head *head) {
    if (head->err != HEARTH_OK) {
        return head->err == HEARTH_ERR_STATE ? KV_DAMAGED : KV_UNREADABLE;
    }
    return hearth_kv_verdict_state(head->verdict, head->info.readable);
}

static bool note_model(void *user, struct hearth_model_id id) {
    return hearth_kv_model(user, id) != NULL;
}

/* The line about a model, whatever bytes the file has. */
static void read_about(struct kv *kv, struct kv_model *model) {
    struct hearth_buf clean = {0};
    char raw[200];
    hearth_directory_about(kv->directory, model->id, raw, sizeof raw);
    if (hearth_utf8_append(&clean, raw, strlen(raw)) && clean.len > 0) {
        const size_t most = sizeof model->about - 1;
        const size_t len = hearth_utf8_complete((const char *)clean.data, clean.len < most ? clean.len : most);
        memcpy(model->about, clean.data, len);
        model->about[len] = '\0';
    }
    hearth_buf_finish(&clean);
}

struct file_list {
    struct kv_model *model;
    bool nomem;
};

static bool note_file(void *user, const struct hearth_file *file) {
    struct file_list *list = user;
    list->nomem = !hearth_kv_add_item(list->model, &(struct kv_item){.file = *file, .state = KV_UNREADABLE});
    return !list->nomem;
}

/* Fills in an item; false when its file is gone. */
static bool read_item(struct kv *kv, struct kv_model *model, struct kv_item *item) {
    struct kv_head head;
    hearth_kv_head_open(kv, &item->file.id, &head);
    if (head.err == HEARTH_ERR_NOT_FOUND) {
        return false;
    }
    struct hearth_file file;
    if (hearth_file_stat(kv->directory, &item->file.id, &file, &item->hits) == HEARTH_OK) {
        item->file = file;
    }
    item->state = hearth_kv_state(&head);
    hearth_kv_take_info(item, &head.info);
    hearth_kv_head_close(&head);
    hearth_kv_count_item(model, item);
    return true;
}

bool hearth_kv_load(struct kv *kv, struct kv_view *view) {
    *view = (struct kv_view){0};
    if (kv->remote) {
        return hearth_kv_remote_load(kv, view);
    }
    int err = hearth_directory_models(kv->directory, note_model, view);
    uint64_t total = 0, done = 0;
    err = err == HEARTH_OK ? view->err : err;
    for (size_t i = 0; i < view->model_n && err == HEARTH_OK; i++) {
        struct file_list list = {.model = &view->models[i]};
        read_about(kv, &view->models[i]);
        err = hearth_directory_walk(kv->directory, view->models[i].id, -1, note_file, &list);
        err = list.nomem ? HEARTH_ERR_NOMEM : err;
        total += view->models[i].n;
    }
    for (size_t i = 0; i < view->model_n && err == HEARTH_OK; i++) {
        struct kv_model *model = &view->models[i];
        size_t kept = 0;
        for (size_t k = 0; k < model->n; k++) {
            struct kv_item item = model->items[k];
            if (read_item(kv, model, &item)) {
                model->items[kept++] = item;
            }
            if (total >= 2000) {
                hearth_show_progress("reading", ++done, total, false);
            }
        }
        model->n = kept;
    }
    if (err == HEARTH_OK && !hearth_kv_find_conversations(view)) {
        err = HEARTH_ERR_NOMEM;
    }
    hearth_show_progress_end();
    if (err != HEARTH_OK) {
        (void)hearth_complain(1, "cannot read %s: %s", hearth_directory_path(kv->directory), hearth_err_text(err));
        hearth_kv_view_finish(view);
        return false;
    }
    return true;
}
