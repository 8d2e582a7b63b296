/* What was loaded, of a directory or a store: models, their items and sums.
 *
 * Invariant: what a model counts is what its items say. */
#include "cli/kv_internal.h"

#include <stdlib.h>
#include <string.h>

enum kv_state hearth_kv_verdict_state(enum hearth_format_verdict verdict, bool readable) {
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

struct kv_model *hearth_kv_model(struct kv_view *view, struct hearth_model_id id) {
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

bool hearth_kv_add_item(struct kv_model *model, const struct kv_item *item) {
    if (!HEARTH_BUF_ROOM(model->items, model->n, model->cap)) {
        return false;
    }
    model->items[model->n++] = *item;
    return true;
}

/* Where an item ends, as what follows it names it. */
static struct hearth_digest end_of(const struct hearth_record *record) {
    const size_t n = hearth_record_tokens(record);
    return n == 0 ? record->base : hearth_record_next(record->base, record->tokens, n);
}

void hearth_kv_take_info(struct kv_item *item, struct hearth_format_info *info) {
    item->page_tokens = info->page_tokens;
    if (item->state == KV_READABLE || item->state == KV_SEALED) {
        item->record = info->record;
        info->record.tokens = NULL; /* taken */
    }
    if (item->state == KV_READABLE) {
        item->end = end_of(&item->record);
    }
}

void hearth_kv_count_item(struct kv_model *model, const struct kv_item *item) {
    const int64_t stamp = item->file.stamp_us;
    model->bytes += item->file.bytes;
    model->count[item->state]++;
    model->state_bytes[item->state] += item->file.bytes;
    *(item->file.id.kind == HEARTH_RECORD_PAGE ? &model->pages : &model->snapshots) += 1;
    model->oldest_us = model->oldest_us == 0 || stamp < model->oldest_us ? stamp : model->oldest_us;
    model->newest_us = stamp > model->newest_us ? stamp : model->newest_us;
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
