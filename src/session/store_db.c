/* The store's tables, and all that is asked of them.
 *
 *     turns     one per turn; `parent`, `session`, `config`, `model` and `owner` are rows, so that a turn's own row is
 *               small beside its blob. `depth` and `total` count turns and tokens up to it. `path` is a digest of
 *               these tokens, by which equal ones of other conversations are found; NULL when they are not known
 *     sessions  `key` is a digest of owner and name, the name itself is in the blob
 *     uses      when a turn was last used: of every turn that no other goes on from, and of others that were asked for.
 *               Those without a row live as long as what goes on from them
 *     configs   texts that many turns share
 *     requests  what is told of the last requests (store_requests.c)
 *     forgets   tokens of which the state is not needed any more
 *     boxes, box_forgets    on a server: the boxes that share it, and which forgets each has still to carry out
 *     owners    how many tokens, bytes of blobs and sessions each has; triggers count
 *
 * `used` of a session is the clock's time, to be shown; `aged`, and `used` in `uses`, are by the store's own time
 * (store_age.c), to be deleted by.
 *
 * `writer` of a turn that is not finished is the process that works on it: a byte of the lock file that it holds.
 * Sessions' rows are never used again (AUTOINCREMENT), since turns may name one that is gone. */
#include "session/store_internal.h"

#include <string.h>

/* A turn's own tokens; for a turn that no model has seen, an estimate from the size of its blob. */
#define TOKENS(row) \
    "(CASE WHEN " row ".total > " row ".base THEN " row ".total - " row ".base ELSE length(" row ".body) / 2 END)"

/* ---- triggers: of a file and, in other words, of a server ----
 *
 * trigger(name, event, change): what is changed after an event, for each row. */

#define OF_OWNER(row, sum) "UPDATE owners SET " sum " WHERE id = " row ".owner"

#define COUNT_BYTES(trigger, table)                                                                    \
    trigger(table "_in", "INSERT ON " table, OF_OWNER("NEW", "bytes = bytes + length(NEW.body)"))      \
        trigger(table "_out", "DELETE ON " table, OF_OWNER("OLD", "bytes = bytes - length(OLD.body)")) \
            trigger(table "_set", "UPDATE OF body ON " table,                                          \
                    OF_OWNER("NEW", "bytes = bytes + length(NEW.body) - length(OLD.body)"))

#define COUNT_ALL_BYTES(trigger) \
    COUNT_BYTES(trigger, "turns") COUNT_BYTES(trigger, "configs") COUNT_BYTES(trigger, "sessions")

#define COUNT_SESSIONS(trigger)                                                                \
    trigger("sessions_more", "INSERT ON sessions", OF_OWNER("NEW", "sessions = sessions + 1")) \
        trigger("sessions_less", "DELETE ON sessions", OF_OWNER("OLD", "sessions = sessions - 1"))

#define COUNT_TOKENS(trigger)                                                                               \
    trigger("turns_tokens_in", "INSERT ON turns", OF_OWNER("NEW", "tokens = tokens + " TOKENS("NEW")))      \
        trigger("turns_tokens_out", "DELETE ON turns", OF_OWNER("OLD", "tokens = tokens - " TOKENS("OLD"))) \
            trigger("turns_tokens_set", "UPDATE OF base, total, body ON turns",                             \
                    OF_OWNER("NEW", "tokens = tokens + " TOKENS("NEW") " - " TOKENS("OLD")))

/* What is told of requests goes with its session and its turn. */
#define DROP_REQUESTS(trigger)                                                                           \
    trigger("requests_of_session", "DELETE ON sessions", "DELETE FROM requests WHERE session = OLD.key") \
        trigger("requests_of_turn", "DELETE ON turns", "DELETE FROM requests WHERE turn = OLD.key")      \
            trigger("requests_of_hidden", "UPDATE OF hidden ON turns",                                   \
                    "DELETE FROM requests WHERE NEW.hidden = 1 AND turn = OLD.key")

#define FILE_TRIGGER(name, event, change) "CREATE TRIGGER " name " AFTER " event " BEGIN " change "; END;"

static const char *const steps[] = {
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE owners (id INTEGER PRIMARY KEY, owner BLOB NOT NULL UNIQUE);"
    "CREATE TABLE models (id INTEGER PRIMARY KEY, model BLOB NOT NULL, salt BLOB NOT NULL, UNIQUE (model, salt));"
    "CREATE TABLE configs (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, body BLOB NOT NULL);"
    "CREATE TABLE turns (id INTEGER PRIMARY KEY, key BLOB NOT NULL, owner INTEGER NOT NULL, parent INTEGER,"
    " session INTEGER, config INTEGER, model INTEGER, status INTEGER NOT NULL, hidden INTEGER NOT NULL,"
    " writer INTEGER, created INTEGER NOT NULL, base INTEGER NOT NULL, depth INTEGER NOT NULL,"
    " total INTEGER NOT NULL, path BLOB, body BLOB NOT NULL);"
    "CREATE UNIQUE INDEX turns_key ON turns (key);"
    "CREATE INDEX turns_parent ON turns (parent) WHERE parent IS NOT NULL;"
    "CREATE INDEX turns_session ON turns (session) WHERE session IS NOT NULL;"
    "CREATE INDEX turns_path ON turns (path) WHERE path IS NOT NULL;"
    "CREATE INDEX turns_config ON turns (config) WHERE config IS NOT NULL;"
    "CREATE INDEX turns_open ON turns (id) WHERE status <= 1;"
    "CREATE INDEX turns_hidden ON turns (hidden) WHERE hidden = 1;"
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE, owner INTEGER NOT NULL,"
    " head INTEGER, created INTEGER NOT NULL, used INTEGER NOT NULL, body BLOB NOT NULL);"
    "CREATE INDEX sessions_owner ON sessions (owner, used);"
    "CREATE INDEX sessions_used ON sessions (used);"
    "CREATE INDEX sessions_head ON sessions (head) WHERE head IS NOT NULL;"
    "CREATE TABLE uses (turn INTEGER PRIMARY KEY, used INTEGER NOT NULL);"
    "CREATE INDEX uses_used ON uses (used);"
    "CREATE TABLE forgets (id INTEGER PRIMARY KEY AUTOINCREMENT, model INTEGER NOT NULL, keep INTEGER NOT NULL,"
    " body BLOB NOT NULL);",
    "ALTER TABLE owners ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE owners ADD COLUMN sessions INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE configs ADD COLUMN owner INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE sessions ADD COLUMN aged INTEGER NOT NULL DEFAULT 0;"
    "UPDATE sessions SET aged = used;"
    "UPDATE configs SET owner = ifnull((SELECT owner FROM turns WHERE config = configs.id LIMIT 1), 0);"
    "UPDATE owners SET sessions = (SELECT count(*) FROM sessions WHERE owner = owners.id),"
    " bytes = (SELECT ifnull(sum(length(body)), 0) FROM turns WHERE owner = owners.id)"
    " + (SELECT ifnull(sum(length(body)), 0) FROM sessions WHERE owner = owners.id)"
    " + (SELECT ifnull(sum(length(body)), 0) FROM configs WHERE owner = owners.id);"
    "CREATE INDEX sessions_aged ON sessions (aged);" COUNT_ALL_BYTES(FILE_TRIGGER) COUNT_SESSIONS(FILE_TRIGGER),
    "ALTER TABLE owners ADD COLUMN tokens INTEGER NOT NULL DEFAULT 0;"
    "UPDATE owners SET tokens = (SELECT ifnull(sum(" TOKENS(
        "turns") "), 0) FROM turns WHERE owner = owners.id);" COUNT_TOKENS(FILE_TRIGGER),
    "CREATE TABLE requests (id INTEGER PRIMARY KEY, request TEXT NOT NULL, owner BLOB NOT NULL, session BLOB,"
    " turn BLOB, created INTEGER NOT NULL, body BLOB NOT NULL);"
    "CREATE INDEX requests_session ON requests (session) WHERE session IS NOT NULL;"
    "CREATE INDEX requests_turn ON requests (turn) WHERE turn IS NOT NULL;" DROP_REQUESTS(FILE_TRIGGER)};

/* ---- on a server ---- */

#define SERVER_TRIGGER(name, event, change)                                                                        \
    "CREATE FUNCTION " name "() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN " change \
    "; RETURN NULL; END $$;"                                                                                       \
    "CREATE TRIGGER " name " AFTER " event " FOR EACH ROW EXECUTE FUNCTION " name "();"
#define SERVER_ID "id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"

static const char *const server_steps[] = {
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value BYTEA NOT NULL);"
    "CREATE TABLE owners (" SERVER_ID ", owner BYTEA NOT NULL UNIQUE, bytes BIGINT NOT NULL DEFAULT 0,"
    " sessions BIGINT NOT NULL DEFAULT 0, tokens BIGINT NOT NULL DEFAULT 0);"
    "CREATE TABLE models (" SERVER_ID ", model BYTEA NOT NULL, salt BYTEA NOT NULL, UNIQUE (model, salt));"
    "CREATE TABLE configs (" SERVER_ID ", key BYTEA NOT NULL UNIQUE, owner BIGINT NOT NULL, body BYTEA NOT NULL);"
    "CREATE TABLE turns (" SERVER_ID ", key BYTEA NOT NULL UNIQUE, owner BIGINT NOT NULL, parent BIGINT,"
    " session BIGINT, config BIGINT, model BIGINT, status BIGINT NOT NULL, hidden BIGINT NOT NULL, writer BIGINT,"
    " created BIGINT NOT NULL, base BIGINT NOT NULL, depth BIGINT NOT NULL, total BIGINT NOT NULL, path BYTEA,"
    " body BYTEA NOT NULL);"
    "CREATE INDEX turns_parent ON turns (parent) WHERE parent IS NOT NULL;"
    "CREATE INDEX turns_session ON turns (session) WHERE session IS NOT NULL;"
    "CREATE INDEX turns_path ON turns (path) WHERE path IS NOT NULL;"
    "CREATE INDEX turns_config ON turns (config) WHERE config IS NOT NULL;"
    "CREATE INDEX turns_open ON turns (id) WHERE status <= 1;"
    "CREATE INDEX turns_hidden ON turns (hidden) WHERE hidden = 1;"
    "CREATE TABLE sessions (" SERVER_ID ", key BYTEA NOT NULL UNIQUE, owner BIGINT NOT NULL, head BIGINT,"
    " created BIGINT NOT NULL, used BIGINT NOT NULL, aged BIGINT NOT NULL, body BYTEA NOT NULL);"
    "CREATE INDEX sessions_owner ON sessions (owner, used, id);"
    "CREATE INDEX sessions_used ON sessions (used, id);"
    "CREATE INDEX sessions_aged ON sessions (aged);"
    "CREATE INDEX sessions_head ON sessions (head) WHERE head IS NOT NULL;"
    "CREATE TABLE uses (turn BIGINT PRIMARY KEY, used BIGINT NOT NULL);"
    "CREATE INDEX uses_used ON uses (used);"
    "CREATE TABLE forgets (" SERVER_ID ", model BIGINT NOT NULL, keep BIGINT NOT NULL, body BYTEA NOT NULL);"
    "CREATE TABLE boxes (box BYTEA NOT NULL, model BYTEA NOT NULL, done BIGINT NOT NULL, seen BIGINT NOT NULL,"
    " PRIMARY KEY (box, model));"
    "CREATE TABLE requests (" SERVER_ID ", request TEXT NOT NULL, owner BYTEA NOT NULL, session BYTEA, turn BYTEA,"
    " created BIGINT NOT NULL, body BYTEA NOT NULL);"
    "CREATE INDEX requests_session ON requests (session) WHERE session IS NOT NULL;"
    "CREATE INDEX requests_turn ON requests (turn) WHERE turn IS NOT NULL;",
    /* what is stored is compressed already */
    "ALTER TABLE turns ALTER COLUMN body SET STORAGE EXTERNAL;"
    "ALTER TABLE configs ALTER COLUMN body SET STORAGE EXTERNAL;"
    "ALTER TABLE forgets ALTER COLUMN body SET STORAGE EXTERNAL;"
    "ALTER TABLE requests ALTER COLUMN body SET STORAGE EXTERNAL;" COUNT_ALL_BYTES(SERVER_TRIGGER),
    COUNT_SESSIONS(SERVER_TRIGGER) COUNT_TOKENS(SERVER_TRIGGER) DROP_REQUESTS(SERVER_TRIGGER),
    /* A forget is work for every box of its model, and goes when the last one has done it (store_boxes.c). */
    "DROP TABLE boxes;"
    "CREATE TABLE boxes (" SERVER_ID ", box BYTEA NOT NULL, model BYTEA NOT NULL, stays BIGINT NOT NULL,"
    " seen BIGINT NOT NULL, UNIQUE (box, model));"
    "CREATE TABLE box_forgets (box BIGINT NOT NULL, forget BIGINT NOT NULL, PRIMARY KEY (box, forget));"
    "CREATE INDEX box_forgets_forget ON box_forgets (forget);" SERVER_TRIGGER(
        "forgets_in", "INSERT ON forgets",
        "INSERT INTO box_forgets SELECT b.id, NEW.id FROM boxes AS b JOIN models AS m ON m.model = b.model"
        " WHERE m.id = NEW.model")
        SERVER_TRIGGER("boxes_in", "INSERT ON boxes",
                       "INSERT INTO box_forgets SELECT NEW.id, f.id FROM forgets AS f JOIN models AS m"
                       " ON m.id = f.model WHERE m.model = NEW.model ON CONFLICT DO NOTHING")
            SERVER_TRIGGER("boxes_out", "DELETE ON boxes", "DELETE FROM box_forgets WHERE box = OLD.id")
                SERVER_TRIGGER("box_forgets_out", "DELETE ON box_forgets",
                               "DELETE FROM forgets WHERE id = OLD.forget"
                               " AND NOT EXISTS (SELECT 1 FROM box_forgets WHERE forget = OLD.forget)")};

#define TURN                                                                                                       \
    "SELECT t.id, t.key, t.owner, o.owner, t.parent, p.key, t.session, t.config, c.key, t.model, m.model, m.salt," \
    " t.status, t.hidden, t.created, t.base, t.depth, t.total, u.used, t.path, t.body FROM turns AS t"             \
    " JOIN owners AS o ON o.id = t.owner LEFT JOIN turns AS p ON p.id = t.parent"                                  \
    " LEFT JOIN configs AS c ON c.id = t.config LEFT JOIN models AS m ON m.id = t.model"                           \
    " LEFT JOIN uses AS u ON u.turn = t.id WHERE "

#define SESSION                                                                                       \
    "SELECT s.id, s.key, o.owner, s.head, t.key, s.created, s.used, t.depth, t.total, s.body, s.aged" \
    " FROM sessions AS s"                                                                             \
    " JOIN owners AS o ON o.id = s.owner LEFT JOIN turns AS t ON t.id = s.head WHERE "

/* The greater one of a column and a value. */
#define LATER(column, value) "CASE WHEN " column " > " value " THEN " column " ELSE " value " END"

/* A server's clock, which is the same for all boxes; seconds. */
#define NOW "CAST(extract(epoch FROM now()) AS BIGINT)"

static const char *const statements[STORE_STATEMENTS] = {
#define X(name, sql) [name] = (sql),
#include "session/store_statements.def"
#undef X
};

static const char *const server_statements[STORE_STATEMENTS] = {
#define X(name, sql) [name] = (sql),
#include "session/store_server.def"
#undef X
};

const struct hearth_db_kind hearth_session_db_kind = {.label = "sessions",
                                                      .application = HEARTH_SESSION_APPLICATION,
                                                      .steps = steps,
                                                      .version = sizeof steps / sizeof steps[0],
                                                      .schema = "hearth",
                                                      .server_steps = server_steps,
                                                      .server_version = sizeof server_steps / sizeof server_steps[0],
                                                      .server_statements = server_statements,
                                                      .statements = statements,
                                                      .statement_count = STORE_STATEMENTS,
                                                      .has_sums = true};

struct hearth_digest hearth_session_digest(const struct hearth_db *db, struct hearth_digest owner, const void *text,
                                           size_t len) {
    const struct hearth_digest root = db->seal != NULL ? hearth_seal_id(db->seal) : (struct hearth_digest){0, 0};
    return hearth_digest_chain(hearth_digest_chain(root, &owner, sizeof owner), text, len);
}

int hearth_session_get_meta(struct hearth_db *db, const char *key, void *out, size_t most) {
    const int found = hearth_db_query(db, META_GET, "t", key);
    if (found <= 0) {
        return found;
    }
    size_t len;
    const void *bytes = hearth_db_column_bytes(db, META_GET, 0, &len);
    if (len > 0 && most > 0) {
        memcpy(out, bytes, len < most ? len : most);
    }
    hearth_db_reset(db, META_GET);
    return (int)len;
}

int hearth_session_put_meta(struct hearth_db *db, const char *key, const void *bytes, size_t len) {
    const struct hearth_buf value = {.data = (uint8_t *)(uintptr_t)bytes, .len = len};
    return hearth_db_run(db, META_PUT, "tb", key, &value);
}
