/* `hearth kv` of a store that boxes share: what the index hashes say, as kv_load.c has it of files, and what is done
 * with it. Budget and quarantine are the store's own business: its maxmemory evicts, and what does not verify is
 * removed. */
#include "cli/kv_internal.h"

#include "base/clock.h"

#include <jansson.h>
#include <string.h>

/* ---- loading ---- */

struct load {
    struct kv *kv;
    struct kv_view *view;
    uint64_t gone; /* headers whose state the store has evicted */
};

static bool load_item(void *user, const struct hearth_remote_listed *listed) {
    struct load *load = user;
    struct hearth_format_info info = {0};
    struct kv_model *model = hearth_kv_model(load->view, listed->model);
    struct kv_item item = {.place = {.model = listed->model, .base = listed->base, .name = listed->name}};
    if (!model) {
        return false;
    }
    enum hearth_format_verdict verdict =
        hearth_format_read(listed->header, listed->padded_bytes, load->kv->seal, &info);
    const bool known = verdict == HEARTH_FORMAT_GOOD || verdict == HEARTH_FORMAT_WRONG_KEY;
    if (known && (!hearth_digest_equal(info.record.name, listed->name) ||
                  strcmp(hearth_model_id(info.fingerprint, info.page_tokens).hex, listed->model.hex) != 0 ||
                  (info.readable && !hearth_digest_equal(info.record.base, listed->base)))) {
        verdict = HEARTH_FORMAT_DAMAGED; /* another one's name */
    }
    item.state = hearth_kv_verdict_state(verdict, info.readable);
    item.place.payload_bytes = item.state == KV_DAMAGED ? 0 : info.payload_bytes;
    item.file = (struct hearth_file){
        .id = {.model = listed->model, .name = listed->name, .kind = info.record.kind},
        .bytes = listed->header_bytes + item.place.payload_bytes,
    };
    const int64_t idle_s = hearth_remote_list_idle_s(load->kv->remote, &item.place);
    const int64_t used_us = idle_s >= 0 ? hearth_clock_unix_us() - idle_s * 1000000 : (int64_t)info.created_us;
    bool ok = true;
    if (idle_s == -1) {
        load->gone++;
    } else {
        hearth_kv_take_info(&item, &info);
        item.file.stamp_us = used_us - item.record.p1; /* as files have it */
        ok = hearth_kv_add_item(model, &item);
        hearth_kv_count_item(model, &item);
        load->view->err = ok ? load->view->err : HEARTH_ERR_NOMEM;
    }
    hearth_format_info_finish(&info);
    return ok;
}

static bool load_all(struct load *load) {
    struct kv_view *view = load->view;
    int err = hearth_remote_list_walk(load->kv->remote, load_item, load);
    err = err == HEARTH_OK ? view->err : err;
    if (err == HEARTH_OK && !hearth_kv_find_conversations(view)) {
        err = HEARTH_ERR_NOMEM;
    }
    if (err != HEARTH_OK) {
        (void)hearth_complain(1, "cannot read %s: %s", hearth_kv_place(load->kv),
                              err == HEARTH_ERR_IO ? hearth_remote_list_trouble(load->kv->remote)
                                                   : hearth_err_text(err));
        hearth_kv_view_finish(view);
        return false;
    }
    return true;
}

bool hearth_kv_remote_load(struct kv *kv, struct kv_view *view) {
    struct load load = {.kv = kv, .view = view};
    return load_all(&load);
}

/* ---- verify ---- */

struct remote_sums {
    uint64_t items, bytes, good, damaged, sealed, other_version, gone;
};

/* As verify says it of a file: NOT_FOUND goes as a miss, and is no damage. */
static enum kv_state check(struct kv *kv, const struct hearth_remote_listed *listed, struct hearth_remote_place *place,
                           bool *gone) {
    struct hearth_format_info info = {0};
    struct hearth_buf payload = {0}, state = {0};
    enum hearth_format_verdict verdict = hearth_format_read(listed->header, listed->padded_bytes, kv->seal, &info);
    const bool known = verdict == HEARTH_FORMAT_GOOD || verdict == HEARTH_FORMAT_WRONG_KEY;
    *place = (struct hearth_remote_place){listed->model, listed->base, listed->name, known ? info.payload_bytes : 0};
    if (known && !hearth_digest_equal(info.record.name, listed->name)) {
        verdict = HEARTH_FORMAT_DAMAGED;
    } else if (known) {
        const int err = hearth_remote_list_read(kv->remote, place, &payload);
        *gone = err != HEARTH_OK;
        if (!*gone && verdict == HEARTH_FORMAT_GOOD && info.readable && info.payload_bytes > 0) {
            verdict = hearth_format_open(&info, kv->seal, &payload, &state, NULL);
        } else if (!*gone && info.payload_bytes > 0 &&
                   hearth_checksum(payload.data, payload.len) != info.payload_checksum) {
            verdict = HEARTH_FORMAT_WRONG_PAYLOAD;
        }
    }
    const enum kv_state out = hearth_kv_verdict_state(verdict, info.readable);
    hearth_buf_finish(&payload);
    hearth_buf_finish(&state);
    hearth_format_info_finish(&info);
    return out;
}

struct verifying {
    struct kv *kv;
    struct remote_sums sums;
};

static bool verify_item(void *user, const struct hearth_remote_listed *listed) {
    struct verifying *verifying = user;
    struct remote_sums *sums = &verifying->sums;
    struct hearth_remote_place place;
    bool gone = false;
    const enum kv_state state = check(verifying->kv, listed, &place, &gone);
    sums->items++;
    sums->bytes += listed->header_bytes + place.payload_bytes;
    if (gone) {
        sums->gone++;
        return true;
    }
    switch (state) {
    case KV_READABLE: sums->good++; break;
    case KV_SEALED: sums->sealed++; break;
    case KV_OTHER_VERSION: sums->other_version++; break;
    default: sums->damaged++; (void)hearth_remote_list_remove(verifying->kv->remote, &place);
    }
    return true;
}

int hearth_kv_remote_verify(struct kv *kv) {
    struct verifying verifying = {.kv = kv};
    const struct remote_sums *sums = &verifying.sums;
    const int err = hearth_remote_list_walk(kv->remote, verify_item, &verifying);
    hearth_show_progress_end();
    if (err != HEARTH_OK) {
        return hearth_complain(1, "cannot read %s: %s", hearth_kv_place(kv), hearth_remote_list_trouble(kv->remote));
    }
    const int status = sums->damaged > 0;
    if (kv->options.json) {
        return hearth_show_json(json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "items", (json_int_t)sums->items,
                                          "bytes", (json_int_t)sums->bytes, "good", (json_int_t)sums->good, "damaged",
                                          (json_int_t)sums->damaged, "sealed", (json_int_t)sums->sealed,
                                          "other_version", (json_int_t)sums->other_version, "evicted",
                                          (json_int_t)sums->gone)) != 0 ||
               status;
    }
    (void)printf("%s, %s: %s good", hearth_show_number(sums->items, "item", "items").text,
                 hearth_show_bytes(sums->bytes).text, hearth_show_count(sums->good).text);
    const struct {
        uint64_t n;
        const char *text;
    } rest[] = {{sums->sealed, "sealed (checksums match; --kv-key FILE verifies them)"},
                {sums->other_version, "of another version of hearth"},
                {sums->gone, "evicted by the store (gc removes what is left)"},
                {sums->damaged, "damaged: removed"}};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        if (rest[i].n > 0) {
            (void)printf(", %s %s", hearth_show_count(rest[i].n).text, rest[i].text);
        }
    }
    (void)printf("\n");
    return status;
}

/* ---- gc ---- */

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
    struct hearth_format_info info = {0};
    const enum hearth_format_verdict verdict =
        hearth_format_read(listed->header, listed->padded_bytes, leftovers->kv->seal, &info);
    const bool known = verdict == HEARTH_FORMAT_GOOD || verdict == HEARTH_FORMAT_WRONG_KEY;
    const struct hearth_remote_place place = {listed->model, listed->base, listed->name, info.payload_bytes};
    if (known && hearth_remote_list_idle_s(leftovers->kv->remote, &place) == -1) {
        leftovers->removed += hearth_remote_list_remove(leftovers->kv->remote, &place) == HEARTH_OK;
    }
    hearth_format_info_finish(&info);
    return true;
}

int hearth_kv_remote_gc(struct kv *kv) {
    struct leftovers leftovers = {.kv = kv};
    struct kv_view view = {0};
    struct names names = {0};
    uint64_t parts = 0, bytes = 0;
    int status = hearth_kv_remote_load(kv, &view) ? 0 : 1;
    if (status == 0 && !note_names(&view, &names)) {
        status = hearth_complain(1, "out of memory");
    }
    if (status == 0 && (hearth_remote_list_walk(kv->remote, remove_gone, &leftovers) != HEARTH_OK ||
                        hearth_remote_list_sweep(kv->remote, is_known, &names, &parts, &bytes) != HEARTH_OK)) {
        status = hearth_complain(1, "%s: %s", hearth_kv_place(kv), hearth_remote_list_trouble(kv->remote));
    }
    if (status == 0 && kv->options.json) {
        status = hearth_show_json(json_pack("{s:I, s:I, s:I}", "removed_headers", (json_int_t)leftovers.removed,
                                            "removed_parts", (json_int_t)parts, "removed_bytes", (json_int_t)bytes));
    } else if (status == 0) {
        (void)printf("removed %s without state, %s without a header (%s); what the store may take is its maxmemory\n",
                     hearth_show_number(leftovers.removed, "header", "headers").text,
                     hearth_show_number(parts, "part", "parts").text, hearth_show_bytes(bytes).text);
    }
    free(names.names);
    hearth_kv_view_finish(&view);
    return status;
}
