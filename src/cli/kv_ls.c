/* `hearth kv ls` and `hearth kv stat`. The JSON objects are described in docs/disk.md. */
#include "cli/kv_internal.h"
#include "console/table.h"

#include <jansson.h>

#define SHARED_TEXT_COLUMNS 40

static double seconds(int64_t us) {
    return (double)us / 1e6;
}

/* ---- ls ---- */

static json_t *conversation_json(const struct kv_view *view, const struct kv_conversation *c) {
    char id[33], name[33];
    hearth_kv_id(view, c, id);
    hearth_digest_hex(c->leaf->record.name, name);
    return json_pack("{s:s, s:s, s:i, s:I, s:I, s:f, s:i, s:i, s:i, s:b, s:s, s:s}", "id", id, "name", name, "tokens",
                     (int)c->leaf->record.p1, "own_bytes", (json_int_t)c->own_bytes, "shared_bytes",
                     (json_int_t)c->shared_bytes, "used", seconds(c->used_us), "hits", (int)c->hits, "pages",
                     (int)c->pages, "snapshots", (int)c->snapshots, "complete", (int)c->complete, "text", c->text,
                     "own_text", c->own_text);
}

static int ls_json(struct kv *kv, struct kv_view *view) {
    json_t *models = json_array();
    for (size_t m = 0; m < view->model_n; m++) {
        const struct kv_model *model = &view->models[m];
        json_t *list = json_array();
        for (size_t i = 0; i < view->conversation_n; i++) {
            if (view->conversations[i].model == m) {
                (void)json_array_append_new(list, conversation_json(view, &view->conversations[i]));
            }
        }
        (void)json_array_append_new(
            models,
            json_pack("{s:s, s:s+, s:I, s:I, s:o, s:{s:I, s:I}, s:I, s:I, s:I}", "model", model->id.hex, "about",
                      model->about, "", "files", (json_int_t)model->n, "bytes", (json_int_t)model->totals.bytes,
                      "conversations", list, "sealed", "files", (json_int_t)model->count[KV_SEALED], "bytes",
                      (json_int_t)model->state_bytes[KV_SEALED], "damaged", (json_int_t)model->count[KV_DAMAGED],
                      "other_version", (json_int_t)model->count[KV_OTHER_VERSION], "unreadable",
                      (json_int_t)model->count[KV_UNREADABLE]));
    }
    return hearth_show_json(
        json_pack("{s:s, s:o}", kv->remote ? "store" : "dir", hearth_kv_place(kv), "models", models));
}

static const struct hearth_show_column columns[] = {
    {"ID", true, 0},    {"TOKENS", false, 0}, {"OWN", false, 0},   {"SHARED", false, 0},
    {"USED", false, 0}, {"HITS", false, 0},   {"SNAPS", false, 0},
};

static void add_row(struct hearth_show_table *table, const struct kv_view *view, const struct kv_conversation *c) {
    char id[33];
    hearth_kv_id(view, c, id);
    hearth_show_table_addf(
        table, "%s\t%s\t%s\t%s\t%s\t%s\t%s", id, hearth_show_count((uint64_t)c->leaf->record.p1).text,
        hearth_show_bytes(c->own_bytes).text, c->shared_bytes > 0 ? hearth_show_bytes(c->shared_bytes).text : "-",
        hearth_show_age(c->used_us).text, hearth_show_count(c->hits).text, hearth_show_count(c->snapshots).text);
}

/* What it begins with, in `room` columns. */
static void print_text(const struct kv_conversation *c, int room) {
    if (!c->complete) {
        (void)fputs("(incomplete) ", stdout);
        room -= 13;
    }
    const char *own = c->own_text;
    /* where the beginning is shared, what is its own says more */
    int most = *own ? room / 3 : room;
    most = *own && most > SHARED_TEXT_COLUMNS ? SHARED_TEXT_COLUMNS : most;
    const int shown = hearth_show_text(stdout, *c->text ? c->text : "…", most);
    if (*own) {
        (void)fputs(" | ", stdout);
        (void)hearth_show_text(stdout, own, room - shown - 3);
    }
    (void)fputc('\n', stdout);
}

/* What of a model is not listed. */
static void print_unlisted(const struct kv_model *model) {
    static const struct {
        enum kv_state state;
        const char *label, *hint;
    } kinds[] = {
        {KV_SEALED, "sealed", "--kv-key FILE opens them"},
        {KV_OTHER_VERSION, "other version", "another version of hearth wrote them"},
        {KV_DAMAGED, "damaged", "hearth kv verify quarantines them"},
        {KV_UNREADABLE, "unreadable", "the system does not let them be read"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const uint64_t n = model->count[kinds[i].state];
        if (n > 0) {
            (void)printf("  (%s)  %s in %s; %s\n", kinds[i].label,
                         hearth_show_bytes(model->state_bytes[kinds[i].state]).text,
                         hearth_show_number(n, "file", "files").text, kinds[i].hint);
        }
    }
}

static void print_model(const struct kv_view *view, size_t m, const struct hearth_show_table *table) {
    const struct kv_model *model = &view->models[m];
    const uint64_t n = model->totals.conversations;
    (void)printf("%.8s  ", model->id.hex);
    (void)hearth_show_text(stdout, *model->about ? model->about : "(a model without a name)", 200);
    (void)printf(": %s, %s in %s\n", hearth_show_number(n, "conversation", "conversations").text,
                 hearth_show_bytes(model->totals.bytes).text, hearth_show_number(model->n, "file", "files").text);
    if (n > 0) {
        (void)hearth_show_table_head(table, "BEGINS WITH");
    }
    for (size_t i = 0; i < view->conversation_n; i++) {
        if (view->conversations[i].model == m) {
            print_text(&view->conversations[i], hearth_show_table_row(table, i));
        }
    }
    print_unlisted(model);
}

static int ls_text(struct kv *kv, const struct kv_view *view) {
    struct hearth_show_table table;
    hearth_show_table_init(&table, columns, sizeof columns / sizeof columns[0], "  ");
    for (size_t i = 0; i < view->conversation_n; i++) {
        add_row(&table, view, &view->conversations[i]);
    }
    for (size_t m = 0; m < view->model_n && !table.nomem; m++) {
        (void)fputs(m > 0 ? "\n" : "", stdout);
        print_model(view, m, &table);
    }
    if (view->model_n == 0) {
        (void)printf("%s is empty\n", hearth_kv_place(kv));
    }
    return hearth_show_table_end(&table);
}

int hearth_kv_ls(struct kv *kv) {
    struct kv_view view;
    if (!hearth_kv_load(kv, &view)) {
        return 1;
    }
    const int status = kv->options.json ? ls_json(kv, &view) : ls_text(kv, &view);
    hearth_kv_view_finish(&view);
    return status;
}

/* ---- stat ---- */

static json_t *totals_json(const struct kv_totals *t) {
    json_t *json =
        HEARTH_SHOW_MEMBERS({"files", t->files}, {"bytes", t->bytes}, {"pages", t->pages}, {"snapshots", t->snapshots},
                            {"tokens", t->tokens}, {"conversations", t->conversations});
    (void)json_object_set_new(json, "oldest", json_real(seconds(t->oldest_us)));
    (void)json_object_set_new(json, "newest", json_real(seconds(t->newest_us)));
    return json;
}

static json_t *model_json(const struct kv_model *model) {
    json_t *json = totals_json(&model->totals),
           *more = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "model", model->id.hex, "about", model->about, "sealed",
                             (json_int_t)model->count[KV_SEALED], "damaged", (json_int_t)model->count[KV_DAMAGED],
                             "other_version", (json_int_t)model->count[KV_OTHER_VERSION], "unreadable",
                             (json_int_t)model->count[KV_UNREADABLE]);
    (void)json_object_update(json, more);
    json_decref(more);
    return json;
}

static void print_files(const char *what, uint64_t bytes, uint64_t files) {
    (void)printf("  %-14s %s in %s\n", what, hearth_show_bytes(bytes).text,
                 hearth_show_number(files, "file", "files").text);
}

static void print_totals(const struct kv_totals *t) {
    print_files("size", t->bytes, t->files);
    (void)printf("  %-14s %s pages with %s tokens, %s\n", "state", hearth_show_count(t->pages).text,
                 hearth_show_count(t->tokens).text, hearth_show_number(t->snapshots, "snapshot", "snapshots").text);
    (void)printf("  %-14s %s\n", "conversations", hearth_show_count(t->conversations).text);
    if (t->files > 0) {
        (void)printf("  %-14s %s to %s ago\n", "last used", hearth_show_age(t->newest_us).text,
                     hearth_show_age(t->oldest_us).text);
    }
}

static void print_model_totals(const struct kv_model *model) {
    (void)printf("%.8s%s", model->id.hex, *model->about ? "  " : "");
    (void)hearth_show_text(stdout, model->about, 200);
    (void)fputc('\n', stdout);
    print_totals(&model->totals);
    print_unlisted(model);
}

/* The directory as a whole. `models`: NULL for text. */
static int stat_directory(struct kv *kv, const struct kv_totals *all, json_t *models) {
    struct hearth_directory_rest rest;
    hearth_directory_rest(kv->directory, &rest);
    const uint64_t free_bytes = hearth_directory_free_bytes(kv->directory), budget = hearth_kv_budget(kv, all->bytes);
    if (models) {
        return hearth_show_json(
            json_pack("{s:s, s:o, s:o, s:I, s:I, s:o, s:o, s:I}", "dir", hearth_kv_place(kv), "models", models, "total",
                      totals_json(all), "budget_bytes", (json_int_t)budget, "free_bytes", (json_int_t)free_bytes, "bad",
                      HEARTH_SHOW_MEMBERS({"files", rest.bad_files}, {"bytes", rest.bad_bytes}), "drafts",
                      HEARTH_SHOW_MEMBERS({"files", rest.draft_files}, {"bytes", rest.draft_bytes}), "other_bytes",
                      (json_int_t)rest.other_bytes));
    }
    (void)printf("  %-14s %s: %s %.0f %% used\n", "budget", hearth_show_bytes(budget).text,
                 kv->options.budget_mib >= 0 ? "as given," : "the default,",
                 budget > 0 ? 100.0 * (double)all->bytes / (double)budget : 0.0);
    (void)printf("  %-14s %s\n", "free", hearth_show_bytes(free_bytes).text);
    print_files("quarantined", rest.bad_bytes, rest.bad_files);
    print_files("being written", rest.draft_bytes, rest.draft_files);
    (void)printf("  %-14s %s\n", "other files", hearth_show_bytes(rest.other_bytes).text);
    return 0;
}

/* Likewise the store, whose own limit stands in place of a budget. */
static int stat_store(struct kv *kv, const struct kv_totals *all, json_t *models) {
    struct hearth_remote_memory memory;
    if (hearth_remote_list_memory(kv->remote, &memory) != HEARTH_OK) {
        json_decref(models);
        return hearth_complain(1, "%s: %s", hearth_kv_place(kv), hearth_remote_list_trouble(kv->remote));
    }
    if (models) {
        return hearth_show_json(json_pack("{s:s, s:o, s:o, s:I, s:I, s:s}", "store", hearth_kv_place(kv), "models",
                                          models, "total", totals_json(all), "memory_bytes",
                                          (json_int_t)memory.used_bytes, "maxmemory_bytes",
                                          (json_int_t)memory.most_bytes, "policy", memory.policy));
    }
    (void)printf("  %-14s %s of %s, %s\n", "its memory", hearth_show_bytes(memory.used_bytes).text,
                 memory.most_bytes > 0 ? hearth_show_bytes(memory.most_bytes).text : "no limit", memory.policy);
    return 0;
}

int hearth_kv_stat(struct kv *kv) {
    struct kv_view view;
    struct kv_totals all = {0};
    if (!hearth_kv_load(kv, &view)) {
        return 1;
    }
    json_t *models = kv->options.json ? json_array() : NULL;
    for (size_t m = 0; m < view.model_n; m++) {
        hearth_kv_totals_add(&all, &view.models[m].totals);
        if (models) {
            (void)json_array_append_new(models, model_json(&view.models[m]));
        } else {
            print_model_totals(&view.models[m]);
        }
    }
    if (!models) {
        (void)printf("%s\n", hearth_kv_place(kv));
        print_totals(&all);
    }
    const int status = (kv->remote ? stat_store : stat_directory)(kv, &all, models);
    hearth_kv_view_finish(&view);
    return status;
}
