/* Fuzzes what the session store and the transcripts read from disk, and files of sessions that somebody hands on.
 *
 * `database` changes bytes of a database that has three conversations, `session_file` imports a document, `row` reads
 * the body of a row of the archive, `report` one of the last requests. Whatever stands there, reading ends, and says
 * what it has found or that it has found nothing. */
#include "fuzz.h"

#include "cli/sessions_internal.h"
#include "report/ring.h"
#include "session/store.h"
#include "session/transcript_internal.h"

#include <stdio.h>
#include <sys/stat.h>

/* ---- a database ---- */

#define TURNS 4

static struct hearth_buf database; /* the file, as it was written */

static void put_turns(struct hearth_session_store *store, const char *name, size_t turns, struct hearth_digest parent) {
    struct hearth_errmsg msg;
    for (size_t i = 0; i < turns; i++) {
        struct hearth_turn turn = {.id = hearth_turn_new_id(),
                                   .parent = parent,
                                   .status = HEARTH_TURN_COMPLETED,
                                   .model = {5, 6},
                                   .base_tokens = (uint32_t)i * 3};
        turn.session = strdup(name);
        HEARTH_ASSERT(hearth_buf_text(&turn.body, "{\"input\":[],\"output\":[]}"));
        HEARTH_ASSERT(hearth_buf_text(&turn.config, "{\"system\":[],\"tools\":[]}"));
        for (hearth_token token = 0; token < 3; token++) {
            HEARTH_ASSERT(hearth_tokens_push(&turn.tokens, token));
        }
        HEARTH_ASSERT(hearth_turn_put(store, &turn, &msg) == HEARTH_OK);
        parent = turn.id;
        hearth_turn_finish(&turn);
    }
}

/* Reads a file. False: it is not there. */
static bool read_file(const char *path, struct hearth_buf *out) {
    uint8_t chunk[4096];
    FILE *file = fopen(path, "rb");
    for (size_t n; file != NULL && (n = fread(chunk, 1, sizeof chunk, file)) > 0;) {
        HEARTH_ASSERT(hearth_buf_append(out, chunk, n));
    }
    return file != NULL && fclose(file) == 0;
}

static struct hearth_session_store *open_store(const char *path, struct hearth_errmsg *msg) {
    const struct hearth_session_store_params params = {.path = path};
    struct hearth_session_store *store;
    const int err = hearth_session_store_create(&params, &store, msg);
    HEARTH_ASSERT((err == HEARTH_OK) == (store != NULL) && (err == HEARTH_OK || msg->text[0] != '\0'));
    return store;
}

static void make_database(void) {
    struct hearth_errmsg msg = {""};
    const char *path = fuzz_path("made/hearth.db");
    struct hearth_session_store *store = open_store(path, &msg);
    HEARTH_ASSERT(store != NULL);
    put_turns(store, "one", TURNS, (struct hearth_digest){0, 0});
    put_turns(store, "two", 2, (struct hearth_digest){0, 0});
    put_turns(store, "three", 1, (struct hearth_digest){0, 0});
    HEARTH_ASSERT(hearth_session_delete(store, (struct hearth_digest){0, 0}, "three") == HEARTH_OK);
    hearth_session_store_destroy(store);
    HEARTH_ASSERT(read_file(path, &database) && database.len % 512 == 0);
}

static void read_store(struct hearth_session_store *store) {
    const struct hearth_session_query query = {.all_owners = true};
    struct hearth_session *sessions = NULL;
    struct hearth_session_store_stats stats;
    struct hearth_forget forget = {0};
    size_t count = 0;
    (void)hearth_turn_fail_orphans(store, 0);
    if (hearth_session_list(store, &query, &sessions, &count) == HEARTH_OK) {
        for (size_t i = 0; i < count; i++) {
            struct hearth_line line = {0};
            HEARTH_ASSERT(hearth_session_name_is_valid(sessions[i].name));
            if (hearth_line_get(store, sessions[i].owner, sessions[i].head, &line) == HEARTH_OK) {
                HEARTH_ASSERT(line.count > 0 && line.tokens_turns <= line.count);
                hearth_line_finish(&line);
            }
            hearth_session_finish(&sessions[i]);
        }
        free(sessions);
    }
    if (hearth_forget_next(store, (struct hearth_digest){5, 6}, 0, &forget) == HEARTH_OK) {
        (void)hearth_forget_done(store, forget.id);
        hearth_forget_finish(&forget);
    }
    (void)hearth_session_store_stats(store, &stats);
    (void)hearth_session_delete(store, (struct hearth_digest){0, 0}, "one");
    (void)hearth_session_store_sweep(store, 10);
    (void)hearth_session_store_stats(store, &stats);
}

/* Changes, of four bytes each: page, offset in it (2), and the new byte. Of fewer than four bytes at the end, the first
 * cuts pages off. Row pages are changed behind SQLite's back, as a disk would. */
FUZZ_TARGET(database) {
    struct hearth_errmsg msg = {""};
    if (database.len == 0) {
        make_database();
    }
    uint8_t *bytes = malloc(database.len);
    HEARTH_ASSERT(bytes != NULL);
    memcpy(bytes, database.data, database.len);
    size_t len = database.len, pages = len / 4096;
    struct fuzz_input input = {data, size};
    while (input.left >= 4) {
        const size_t page = fuzz_byte(&input) % pages;
        const size_t offset = ((size_t)fuzz_byte(&input) << 8 | fuzz_byte(&input)) % 4096;
        bytes[page * 4096 + offset] = fuzz_byte(&input);
    }
    if (input.left > 0) {
        len -= fuzz_byte(&input) % pages * 4096;
    }
    fuzz_remove(fuzz_path("db"));
    HEARTH_ASSERT(mkdir(fuzz_path("db"), 0700) == 0);
    const char *path = fuzz_path("db/hearth.db");
    fuzz_write(path, bytes, len);
    free(bytes);
    struct hearth_session_store *store = open_store(path, &msg);
    if (store != NULL) {
        read_store(store);
        hearth_session_store_destroy(store);
    }
}

/* ---- a file of a session ---- */

/* What is imported can be exported and imported again. */
FUZZ_TARGET(session_file) {
    char path[4096], again[4096], name[] = "again", any[] = "";
    char *args[] = {path, again};
    struct hearth_errmsg msg = {""};
    struct hearth_session *list;
    size_t count;
    static struct hearth_session_store *store;
    store = store != NULL ? store : open_store(NULL, &msg);
    struct sessions sessions = {.args = args, .arg_count = 1, .path = any, .store = store};
    (void)snprintf(path, sizeof path, "%s", fuzz_path("session.json"));
    (void)snprintf(again, sizeof again, "%s", fuzz_path("again.json"));
    fuzz_write(path, data, size);
    fuzz_quiet(true);
    const int status = hearth_cli_sessions_import(&sessions);
    bool again_too = false;
    HEARTH_ASSERT(hearth_cli_sessions_list(&sessions, &list, &count) && count == (status == 0));
    if (status == 0) {
        char *export_args[] = {list[0].name, again};
        sessions.args = export_args;
        sessions.arg_count = 2;
        HEARTH_ASSERT(hearth_cli_sessions_export(&sessions) == 0);
        sessions.args = &args[1];
        sessions.arg_count = 1;
        sessions.options.as = name;
        again_too = strcmp(list[0].name, name) != 0;
        HEARTH_ASSERT(!again_too || hearth_cli_sessions_import(&sessions) == 0);
    }
    fuzz_quiet(false);
    hearth_cli_sessions_list_free(list, count);
    HEARTH_ASSERT(hearth_cli_sessions_list(&sessions, &list, &count) && count == (size_t)(status == 0) + again_too);
    for (size_t i = 0; i < count; i++) {
        HEARTH_ASSERT(hearth_session_delete(store, list[i].owner, list[i].name) == HEARTH_OK);
    }
    hearth_cli_sessions_list_free(list, count);
}

/* ---- rows of the archive ---- */

static void read_node(const struct hearth_buf *body) {
    struct text_node node = {0};
    struct hearth_buf packed = {0};
    if (hearth_transcript_unpack_node(body, &node)) {
        HEARTH_ASSERT(node.sampled <= node.token_count && hearth_transcript_pack_node(&node, &packed));
        HEARTH_ASSERT(packed.len == body->len && memcmp(packed.data, body->data, packed.len) == 0);
        free(node.text);
        free(node.tokens);
    }
    hearth_buf_finish(&packed);
}

static void read_reply(const struct hearth_buf *body) {
    struct hearth_buf packed = {0}, twice = {0};
    struct reply *reply = hearth_transcript_unpack_reply(body);
    if (reply != NULL) {
        HEARTH_ASSERT(hearth_transcript_pack_reply(reply, &packed));
        struct reply *again = hearth_transcript_unpack_reply(&packed);
        HEARTH_ASSERT(again != NULL && hearth_transcript_pack_reply(again, &twice));
        HEARTH_ASSERT(packed.len == twice.len && memcmp(packed.data, twice.data, packed.len) == 0);
        HEARTH_ASSERT(hearth_message_equal(reply->message, again->message));
        hearth_transcript_free_reply(again);
        hearth_transcript_free_reply(reply);
    }
    hearth_buf_finish(&packed);
    hearth_buf_finish(&twice);
}

static void read_record(const struct hearth_buf *body) {
    struct hearth_said base_said[2] = {{.content = 1}, {.content = 2}};
    const struct text_node base = {.said = base_said, .said_count = 2};
    struct hearth_transcript_root root;
    struct hearth_buf packed = {0};
    size_t count;
    (void)hearth_transcript_record_base(body);
    for (int with = 0; with < 2; with++) {
        struct hearth_said *said = hearth_transcript_unpack_record(body, with ? &base : NULL, &root, &count);
        if (said != NULL) {
            const struct text_node node = {.said = said, .said_count = count, .root = root};
            HEARTH_ASSERT(hearth_transcript_pack_record(&node, with ? &base : NULL, &packed));
            free(said);
        }
    }
    hearth_buf_finish(&packed);
}

/* Which kind, and the body. */
FUZZ_TARGET(row) {
    struct fuzz_input input = {data, size};
    struct hearth_buf body = {0};
    const uint8_t kind = fuzz_byte(&input);
    HEARTH_ASSERT(hearth_buf_append(&body, input.at, input.left));
    switch (kind % 3) {
    case 0: read_node(&body); break;
    case 1: read_reply(&body); break;
    default: read_record(&body);
    }
    hearth_buf_finish(&body);
}

/* The two texts of a row: what is listed, and what is told of one request, is JSON. */
FUZZ_TARGET(report) {
    struct fuzz_input input = {data, size};
    struct hearth_ring *ring = hearth_ring_create(4);
    const struct hearth_ring_filter filter = {.limit = 2};
    struct hearth_buf out = {0};
    size_t len, quoted_len;
    char *listed = fuzz_part(&input, &len), *quoted = fuzz_part(&input, &quoted_len);
    HEARTH_ASSERT(ring != NULL);
    hearth_ring_load(ring, listed, quoted_len > 0 ? quoted : NULL, (struct hearth_digest){0},
                     (struct hearth_digest){0});
    HEARTH_ASSERT(hearth_ring_list(ring, &filter, &out));
    json_t *list = hearth_json_parse((const char *)out.data, out.len, 0, NULL), *found = NULL;
    HEARTH_ASSERT(json_is_array(list) && json_array_size(list) <= 1);
    const char *id = json_string_value(json_object_get(json_array_get(list, 0), "id"));
    if (json_array_size(list) == 1) {
        HEARTH_ASSERT(id != NULL && hearth_ring_find(ring, id, NULL, &found) && found != NULL);
    }
    json_decref(found);
    json_decref(list);
    hearth_buf_finish(&out);
    hearth_ring_destroy(ring);
    free(listed);
    free(quoted);
}
