/* The directory, or the store, as it is now: every item's header is read, none of the payloads. Servers may write and
 * evict meanwhile; items that disappear before they are read are left out.
 *
 * Invariant: what a model counts is what its items say. */
#include "cli/kv_internal.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_known(enum hearth_format_verdict verdict) {
    return verdict == HEARTH_FORMAT_GOOD || verdict == HEARTH_FORMAT_WRONG_KEY;
}

/* ---- headers ---- */

bool hearth_kv_read_header(struct hearth_transfer_in *in, uint64_t bytes, const struct hearth_seal *seal,
                           struct hearth_buf *header, enum hearth_format_verdict *verdict,
                           struct hearth_format_info *info) {
    *verdict = HEARTH_FORMAT_SHORT;
    if (!hearth_transfer_append(in, header, bytes < HEARTH_FORMAT_BLOCK ? bytes : HEARTH_FORMAT_BLOCK, false)) {
        return false;
    }
    *verdict = hearth_format_read(header->data, header->len, seal, info);
    const size_t want = info->header_bytes;
    if (*verdict == HEARTH_FORMAT_SHORT && want > header->len && want <= bytes && want <= HEARTH_FORMAT_HEADER_MAX) {
        hearth_format_info_finish(info);
        if (!hearth_transfer_append(in, header, want - header->len, false)) {
            return false;
        }
        *verdict = hearth_format_read(header->data, header->len, seal, info);
    }
    return true;
}

void hearth_kv_head_open(struct kv *kv, const struct hearth_file_id *id, struct kv_head *head) {
    struct stat st;
    *head = (struct kv_head){.in.fd = -1, .verdict = HEARTH_FORMAT_SHORT};
    head->err = hearth_file_open(kv->directory, id, &head->in.fd);
    if (head->err == HEARTH_OK && fstat(head->in.fd, &st) != 0) {
        head->err = HEARTH_ERR_IO;
    }
    if (head->err != HEARTH_OK) {
        return;
    }
    struct hearth_format_info *info = &head->info;
    head->file_bytes = (uint64_t)st.st_size;
    if (!hearth_kv_read_header(&head->in, head->file_bytes, kv->seal, &head->header, &head->verdict, info)) {
        head->err = errno == 0 ? HEARTH_OK : HEARTH_ERR_IO; /* 0: it became shorter, which hearth's files never do */
        head->verdict = HEARTH_FORMAT_SHORT;
        return;
    }
    if (is_known(head->verdict)) {
        const uint64_t bytes = info->header_bytes + info->payload_bytes;
        const struct hearth_model_id model = hearth_model_id(info->fingerprint, info->page_tokens);
        if (!hearth_digest_equal(info->record.name, id->name) || info->record.kind != id->kind ||
            strcmp(model.hex, id->model.hex) != 0) {
            head->verdict = HEARTH_FORMAT_DAMAGED; /* another file's name */
        } else if (head->file_bytes != bytes || head->header.len != info->header_bytes) {
            head->verdict = head->file_bytes < bytes ? HEARTH_FORMAT_SHORT : HEARTH_FORMAT_DAMAGED;
        }
    }
}

void hearth_kv_head_close(struct kv_head *head) {
    hearth_format_info_finish(&head->info);
    hearth_buf_finish(&head->header);
    if (head->in.fd >= 0) {
        (void)close(head->in.fd);
    }
}

static enum kv_state state_of(enum hearth_format_verdict verdict, bool readable) {
    switch (verdict) {
    case HEARTH_FORMAT_GOOD: return readable ? KV_READABLE : KV_SEALED;
    case HEARTH_FORMAT_WRONG_KEY: return KV_SEALED;
    case HEARTH_FORMAT_NEWER: return KV_OTHER_VERSION;
    case HEARTH_FORMAT_NOMEM: return KV_UNREADABLE;
    case HEARTH_FORMAT_SHORT:
    case HEARTH_FORMAT_NOT_OURS:
    case HEARTH_FORMAT_DAMAGED:
    case HEARTH_FORMAT_WRONG_PAYLOAD: break;
    }
    return KV_DAMAGED;
}

enum kv_state hearth_kv_state(const struct kv_head *head) {
    if (head->err != HEARTH_OK) {
        return head->err == HEARTH_ERR_STATE ? KV_DAMAGED : KV_UNREADABLE;
    }
    return state_of(head->verdict, head->info.readable);
}

void hearth_kv_head_listed(struct kv *kv, const struct hearth_remote_listed *listed, struct kv_head *head) {
    struct hearth_format_info *info = &head->info;
    *head = (struct kv_head){.in.fd = -1};
    head->verdict = hearth_format_read(listed->header, listed->padded_bytes, kv->seal, info);
    if (is_known(head->verdict) &&
        (!hearth_digest_equal(info->record.name, listed->name) ||
         strcmp(hearth_model_id(info->fingerprint, info->page_tokens).hex, listed->model.hex) != 0 ||
         (info->readable && !hearth_digest_equal(info->record.base, listed->base)))) {
        head->verdict = HEARTH_FORMAT_DAMAGED; /* another item's name */
    }
    const enum kv_state state = hearth_kv_state(head);
    head->place = (struct hearth_remote_place){listed->model, listed->base, listed->name,
                                               state == KV_DAMAGED ? 0 : info->payload_bytes};
    head->file_bytes = listed->header_bytes + head->place.payload_bytes;
}

/* ---- the view ---- */

static struct kv_model *find_model(struct kv_view *view, struct hearth_model_id id) {
    for (size_t i = 0; i < view->model_n; i++) {
        if (strcmp(view->models[i].id.hex, id.hex) == 0) {
            return &view->models[i];
        }
    }
    if (!HEARTH_BUF_ROOM(view->models, view->model_n, view->model_cap)) {
        view->err = HEARTH_ERR_NOMEM;
        return NULL;
    }
    view->models[view->model_n] = (struct kv_model){.id = id};
    return &view->models[view->model_n++];
}

void hearth_kv_totals_add(struct kv_totals *totals, const struct kv_totals *more) {
    totals->files += more->files;
    totals->bytes += more->bytes;
    totals->pages += more->pages;
    totals->snapshots += more->snapshots;
    totals->conversations += more->conversations;
    totals->tokens += more->tokens;
    if (more->files > 0) {
        totals->oldest_us =
            totals->oldest_us == 0 || more->oldest_us < totals->oldest_us ? more->oldest_us : totals->oldest_us;
        totals->newest_us = more->newest_us > totals->newest_us ? more->newest_us : totals->newest_us;
    }
}

/* Adds an item to a model and its sums, with the record of its header. False: out of memory. */
static bool add_item(struct kv_view *view, struct kv_model *model, struct kv_item *item, struct kv_head *head) {
    const bool page = item->file.id.kind == HEARTH_RECORD_PAGE;
    struct hearth_record *record = &item->record;
    if (!HEARTH_BUF_ROOM(model->items, model->n, model->cap)) {
        view->err = HEARTH_ERR_NOMEM;
        return false;
    }
    if (item->state == KV_READABLE || item->state == KV_SEALED) {
        *record = head->info.record;
        head->info.record.tokens = NULL; /* taken */
    }
    if (item->state == KV_READABLE) {
        const size_t n = hearth_record_tokens(record);
        item->end = n == 0 ? record->base : hearth_record_next(record->base, record->tokens, n);
    }
    model->items[model->n++] = *item;
    model->count[item->state]++;
    model->state_bytes[item->state] += item->file.bytes;
    const struct kv_totals one = {.files = 1,
                                  .bytes = item->file.bytes,
                                  .pages = page,
                                  .snapshots = !page,
                                  .tokens = page ? (uint64_t)(record->p1 - record->p0) : 0,
                                  .oldest_us = item->file.stamp_us,
                                  .newest_us = item->file.stamp_us};
    hearth_kv_totals_add(&model->totals, &one);
    return true;
}

void hearth_kv_view_finish(struct kv_view *view) {
    for (size_t i = 0; i < view->model_n; i++) {
        struct kv_model *model = &view->models[i];
        for (size_t k = 0; k < model->n; k++) {
            free(model->items[k].record.tokens);
        }
        free(model->items);
        free(model->sorted);
        free(model->ends);
        free(model->groups);
    }
    free(view->models);
    free(view->conversations);
    *view = (struct kv_view){0};
}

/* ---- loading ---- */

struct load {
    struct kv *kv;
    struct kv_view *view;
    struct kv_model *model; /* of a directory's files */
    uint64_t done;
};

static bool load_file(void *user, const struct hearth_file *file) {
    struct load *load = user;
    struct kv_head head;
    hearth_kv_head_open(load->kv, &file->id, &head);
    struct kv_item item = {.file = *file, .state = hearth_kv_state(&head)};
    bool ok = true;
    if (head.err != HEARTH_ERR_NOT_FOUND) {
        struct hearth_file now;
        if (hearth_file_stat(load->kv->directory, &file->id, &now, &item.hits) == HEARTH_OK) {
            item.file = now;
        }
        ok = add_item(load->view, load->model, &item, &head);
    }
    hearth_kv_head_close(&head);
    if (++load->done >= 2000) {
        hearth_show_progress("reading", load->done, 0, false);
    }
    return ok;
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

static bool load_model(void *user, struct hearth_model_id id) {
    struct load *load = user;
    load->model = find_model(load->view, id);
    if (!load->model) {
        return false;
    }
    read_about(load->kv, load->model);
    const int err = hearth_directory_walk(load->kv->directory, id, -1, load_file, load);
    load->view->err = load->view->err == HEARTH_OK ? err : load->view->err;
    return load->view->err == HEARTH_OK;
}

static bool load_listed(void *user, const struct hearth_remote_listed *listed) {
    struct load *load = user;
    struct kv_model *model = find_model(load->view, listed->model);
    struct kv_head head;
    if (!model) {
        return false;
    }
    hearth_kv_head_listed(load->kv, listed, &head);
    const int64_t idle_s = hearth_remote_list_idle_s(load->kv->remote, &head.place);
    const int64_t used_us = idle_s >= 0 ? hearth_clock_unix_us() - idle_s * 1000000 : (int64_t)head.info.created_us;
    struct kv_item item = {.place = head.place,
                           .state = hearth_kv_state(&head),
                           .file = {.id = {.model = listed->model, .name = listed->name, .kind = head.info.record.kind},
                                    .bytes = head.file_bytes,
                                    .stamp_us = used_us}};
    if (item.state == KV_READABLE || item.state == KV_SEALED) {
        item.file.stamp_us -= head.info.record.p1; /* as files have it */
    }
    const bool ok = idle_s == -1 /* the store has evicted its state */ || add_item(load->view, model, &item, &head);
    hearth_kv_head_close(&head);
    return ok;
}

bool hearth_kv_load(struct kv *kv, struct kv_view *view) {
    struct load load = {.kv = kv, .view = view};
    *view = (struct kv_view){0};
    int err = kv->remote ? hearth_remote_list_walk(kv->remote, load_listed, &load)
                         : hearth_directory_models(kv->directory, load_model, &load);
    err = err == HEARTH_OK ? view->err : err;
    if (err == HEARTH_OK && !hearth_kv_find_conversations(view)) {
        err = HEARTH_ERR_NOMEM;
    }
    hearth_show_progress_end();
    if (err != HEARTH_OK) {
        (void)hearth_complain(1, "cannot read %s: %s", hearth_kv_place(kv),
                              kv->remote && err == HEARTH_ERR_IO ? hearth_remote_list_trouble(kv->remote)
                                                                 : hearth_err_text(err));
        hearth_kv_view_finish(view);
    }
    return err == HEARTH_OK;
}
