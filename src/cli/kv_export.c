/* `hearth kv export` and `import`: a conversation in one file (byte by byte: docs/disk.md).
 *
 *     head (64 bytes) | section | section | … | section "end"
 *     section: type, flags, length, checksum of these (32 bytes) | bytes
 *
 * Sections: "about" (the line about the model), "item" (a state file as it is), "end" (nothing; without it the file was
 * cut short). An importer passes over types that it does not know, unless their flag says that it must not; so other
 * sections, such as a conversation's transcripts, can be added.
 *
 * Import believes nothing: no length makes it allocate more than has come, and an item gets its name only after header,
 * name, length and checksums have been verified. Items carry the fingerprint of their model, which decides where they
 * go. What is there already is left as it is, so importing twice is importing once. */
#include "cli/kv_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define HEAD_BYTES 64
#define SECTION_BYTES 32
#define EXPORT_VERSION 1
#define FLAG_REQUIRED 1
#define ITEM_BYTES_MAX (HEARTH_FORMAT_HEADER_MAX + HEARTH_FORMAT_STATE_MAX)

static const char export_magic[8] = {'h', 'e', 'a', 'r', 't', 'h', 'c', 'v'};

#define PUT(bytes, at, value) memcpy((bytes) + (at), &(value), sizeof(value))
#define GET(bytes, at, value) memcpy(&(value), (bytes) + (at), sizeof(value))

/* ---- export ---- */

struct kv_export {
    struct kv *kv;
    struct kv_list list;
    int fd;
    uint64_t done_bytes; /* of files */
};

/* Pages before what hangs on them. */
static int shallow_first(const void *x, const void *y) {
    const struct kv_item *a = *(struct kv_item *const *)x, *b = *(struct kv_item *const *)y;
    if (a->record.p1 != b->record.p1) {
        return a->record.p1 < b->record.p1 ? -1 : 1;
    }
    return (int)a->record.kind - (int)b->record.kind;
}

static bool write_head(struct kv_export *export, const struct kv_conversation *conversation) {
    uint8_t head[HEAD_BYTES] = {0};
    const uint32_t version = EXPORT_VERSION, bytes = HEAD_BYTES;
    const uint64_t items = export->list.n;
    memcpy(head, export_magic, sizeof export_magic);
    PUT(head, 8, version);
    PUT(head, 12, bytes);
    PUT(head, 16, items);
    PUT(head, 24, export->list.bytes);
    PUT(head, 32, conversation->leaf->record.name.lo);
    PUT(head, 40, conversation->leaf->record.name.hi);
    const uint64_t checksum = hearth_checksum(head, HEAD_BYTES - 8);
    PUT(head, HEAD_BYTES - 8, checksum);
    return hearth_transfer_write(export->fd, head, sizeof head);
}

static bool write_section(int fd, const char *type, uint32_t flags, uint64_t bytes) {
    uint8_t head[SECTION_BYTES] = {0};
    memcpy(head, type, strnlen(type, 8));
    PUT(head, 8, flags);
    PUT(head, 16, bytes);
    const uint64_t checksum = hearth_checksum(head, SECTION_BYTES - 8);
    PUT(head, SECTION_BYTES - 8, checksum);
    return hearth_transfer_write(fd, head, sizeof head);
}

/* One file, whole and verified as far as its checksums go. A status. */
static int export_item(struct kv_export *export, const struct kv_item *item) {
    struct kv_head head;
    struct hearth_buf payload = {0};
    int status = 0;
    char hex[33];
    hearth_digest_hex(item->file.id.name, hex);
    hearth_kv_head_open(export->kv, &item->file.id, &head);
    const struct hearth_format_info *info = &head.info;
    if (head.err == HEARTH_ERR_NOT_FOUND) {
        status = hearth_complain(1, "%s was evicted meanwhile: try again", hex);
    } else if (hearth_kv_state(&head) != KV_READABLE) {
        status = hearth_complain(1, "%s is damaged (hearth kv verify quarantines it)", hex);
    } else if (!hearth_transfer_append(&head.in, &payload, info->payload_bytes, false)) {
        status = hearth_complain(1, "%s cannot be read: %s", hex, strerror(errno));
    } else if (hearth_checksum(payload.data, payload.len) != info->payload_checksum) {
        status = hearth_complain(1, "%s is damaged (hearth kv verify quarantines it)", hex);
    } else if (!write_section(export->fd, "item", FLAG_REQUIRED, head.file_bytes) ||
               !hearth_transfer_write(export->fd, head.header.data, head.header.len) ||
               !hearth_transfer_write(export->fd, payload.data, payload.len)) {
        status = hearth_complain(1, "cannot write: %s", strerror(errno));
    }
    hearth_buf_finish(&payload);
    hearth_kv_head_close(&head);
    export->done_bytes += item->file.bytes;
    hearth_show_progress("exporting", export->done_bytes, export->list.bytes, true);
    return status;
}

static int export_all(struct kv_export *export, const struct kv_view *view,
                      const struct kv_conversation *conversation) {
    const char *about = view->models[conversation->model].about;
    if (!write_head(export, conversation) || !write_section(export->fd, "about", 0, strlen(about)) ||
        !hearth_transfer_write(export->fd, about, strlen(about))) {
        return hearth_complain(1, "cannot write: %s", strerror(errno));
    }
    for (size_t i = 0; i < export->list.n; i++) {
        const int status = export_item(export, export->list.items[i]);
        if (status != 0) {
            return status;
        }
    }
    return write_section(export->fd, "end", FLAG_REQUIRED, 0) ? 0
                                                              : hearth_complain(1, "cannot write: %s", strerror(errno));
}

static int export_to(struct kv_export *export, const char *path, const struct kv_view *view,
                     const struct kv_conversation *conversation) {
    struct hearth_transfer_out file;
    if (hearth_transfer_is_stream(path) && isatty(STDOUT_FILENO) == 1) {
        return hearth_complain(1, "that is no text for a terminal: name a file");
    }
    if (hearth_transfer_create(path, &file) != 0) {
        return 1;
    }
    export->fd = file.fd;
    return hearth_transfer_finish(&file, export_all(export, view, conversation));
}

/* Says what was exported, beside the export itself. */
static void report_export(const struct kv_export *export, const struct kv_conversation *conversation, bool complete,
                          FILE *out) {
    hearth_show_progress_end();
    if (!export->kv->options.json) {
        (void)fprintf(out, "exported %s tokens: %s in %zu %s%s\n",
                      hearth_show_count((uint64_t)conversation->leaf->record.p1).text,
                      hearth_show_bytes(export->list.bytes).text, export->list.n,
                      hearth_plural(export->list.n, "file", "files"),
                      complete ? "" : "; a part of it was evicted before");
        return;
    }
    (void)hearth_show_json_to(out, json_pack("{s:i, s:I, s:I, s:b}", "tokens", (int)conversation->leaf->record.p1,
                                             "files", (json_int_t) export->list.n, "bytes",
                                             (json_int_t) export->list.bytes, "complete", (int)complete));
}

int hearth_kv_export(struct kv *kv) {
    struct kv_view view;
    struct kv_export export = {.kv = kv, .fd = -1};
    if (!hearth_kv_load(kv, &view)) {
        return 1;
    }
    const struct kv_conversation *conversation = hearth_kv_find(&view, kv->args[0]);
    const char *path = kv->args[1];
    int status = conversation ? 0 : 1;
    if (conversation) {
        const bool complete = hearth_kv_walk(&view, conversation, hearth_kv_list_add, &export.list);
        qsort(export.list.items, export.list.n, sizeof *export.list.items, shallow_first);
        status =
            export.list.nomem ? hearth_complain(1, "out of memory") : export_to(&export, path, &view, conversation);
        if (status == 0) {
            report_export(&export, conversation, complete, strcmp(path, "-") == 0 ? stderr : stdout);
        }
    }
    free(export.list.items);
    hearth_kv_view_finish(&view);
    return status;
}

/* ---- import ---- */

struct kv_import {
    struct kv *kv;
    struct hearth_transfer_in in;
    char about[256];
    uint64_t total_bytes;
    uint64_t fresh, fresh_bytes, known, damaged, sealed, skipped; /* items; skipped: of another version */
    bool ended;
    bool stop; /* nothing more can be read or written; it was said */
};

static void stop(struct kv_import *import, const char *cause) {
    import->stop = true;
    (void)hearth_complain(1, "%s", cause);
}

static void stop_reading(struct kv_import *import) {
    stop(import, errno != 0 ? strerror(errno) : "the file is cut short: what came before is imported");
}

static bool skip(struct kv_import *import, uint64_t bytes) {
    uint8_t chunk[65536];
    while (bytes > 0) {
        const size_t n = bytes < sizeof chunk ? (size_t)bytes : sizeof chunk;
        if (!hearth_transfer_read(&import->in, chunk, n)) {
            stop_reading(import);
            return false;
        }
        bytes -= n;
    }
    return true;
}

/* Writes, verifies, publishes. False: it did not verify (with `cause`), or the import stopped. */
static bool publish(struct kv_import *import, const struct hearth_file_id *id, const struct hearth_format_info *info,
                    const struct hearth_buf *header, struct hearth_buf *payload, const char **cause) {
    struct hearth_directory *directory = import->kv->directory;
    struct hearth_file_draft draft;
    struct hearth_buf state = {0};
    struct timeval now = {0, 0};
    (void)gettimeofday(&now, NULL);
    const struct timespec stamp =
        hearth_file_stamp((int64_t)now.tv_sec * 1000000 + now.tv_usec, info->record.p1, false);
    if (hearth_directory_add_model(directory, id->model, import->about) != HEARTH_OK ||
        hearth_file_create(directory, id->model, &draft) != HEARTH_OK) {
        stop(import, strerror(errno));
        return false;
    }
    bool ok = hearth_transfer_write(draft.fd, header->data, header->len) &&
              hearth_transfer_write(draft.fd, payload->data, payload->len) && fsync(draft.fd) == 0;
    if (!ok) {
        stop(import, strerror(errno));
    } else {
        const enum hearth_format_verdict verdict = hearth_format_open(info, import->kv->seal, payload, &state, NULL);
        *cause = hearth_format_verdict_text(verdict);
        ok = verdict == HEARTH_FORMAT_GOOD;
    }
    hearth_buf_finish(&state);
    if (!ok) {
        hearth_file_discard(directory, &draft);
        return false;
    }
    ok = hearth_file_publish(directory, &draft, id, &stamp) == HEARTH_OK &&
         hearth_file_sync_shard(directory, id) == HEARTH_OK;
    if (!ok) {
        stop(import, strerror(errno));
    }
    return ok;
}

static void count_damaged(struct kv_import *import, const char *cause) {
    import->damaged++;
    (void)hearth_complain(1, "an item is not imported: %s", cause);
}

/* An item with a good header. */
static void import_known_header(struct kv_import *import, const struct hearth_format_info *info,
                                struct hearth_buf *header, uint64_t left) {
    const struct hearth_file_id id = {.model = hearth_model_id(info->fingerprint, info->page_tokens),
                                      .name = info->record.name,
                                      .kind = info->record.kind};
    struct hearth_file file;
    struct hearth_buf payload = {0};
    const char *cause = "";
    if (hearth_file_stat(import->kv->directory, &id, &file, NULL) == HEARTH_OK) {
        import->known += skip(import, left);
        return;
    }
    if (!hearth_transfer_append(&import->in, &payload, left, false)) {
        stop_reading(import);
    } else {
        const uint64_t bytes = header->len + payload.len;
        if (publish(import, &id, info, header, &payload, &cause)) {
            import->fresh++;
            import->fresh_bytes += bytes;
        } else if (!import->stop) {
            count_damaged(import, cause);
        }
    }
    hearth_buf_finish(&payload);
}

static void import_item(struct kv_import *import, uint64_t bytes) {
    struct hearth_buf header = {0};
    struct hearth_format_info info = {0};
    enum hearth_format_verdict verdict;
    if (!hearth_kv_read_header(&import->in, bytes, import->kv->seal, &header, &verdict, &info)) {
        stop_reading(import);
    } else {
        const uint64_t left = bytes - header.len;
        if (verdict == HEARTH_FORMAT_NEWER) {
            import->skipped += skip(import, left);
        } else if (verdict == HEARTH_FORMAT_WRONG_KEY || (verdict == HEARTH_FORMAT_GOOD && !info.readable)) {
            import->sealed += skip(import, left);
        } else if (verdict != HEARTH_FORMAT_GOOD) {
            count_damaged(import, hearth_format_verdict_text(verdict));
            (void)skip(import, left);
        } else if (info.header_bytes != header.len || info.payload_bytes != left) {
            count_damaged(import, "it is not as long as it says");
            (void)skip(import, left);
        } else {
            import_known_header(import, &info, &header, left);
        }
    }
    hearth_format_info_finish(&info);
    hearth_buf_finish(&header);
}

static void import_section(struct kv_import *import) {
    uint8_t head[SECTION_BYTES];
    uint64_t bytes, checksum;
    uint32_t flags;
    if (!hearth_transfer_read(&import->in, head, sizeof head)) {
        stop_reading(import);
        return;
    }
    GET(head, 8, flags);
    GET(head, 16, bytes);
    GET(head, SECTION_BYTES - 8, checksum);
    if (checksum != hearth_checksum(head, SECTION_BYTES - 8)) {
        stop(import, "the file is damaged: what came before is imported");
    } else if (memcmp(head, "end\0\0\0\0\0", 8) == 0) {
        import->ended = true;
    } else if (memcmp(head, "item\0\0\0\0", 8) == 0 && bytes <= ITEM_BYTES_MAX) {
        import_item(import, bytes);
    } else if (memcmp(head, "about\0\0\0", 8) == 0 && bytes < sizeof import->about) {
        if (!hearth_transfer_read(&import->in, import->about, (size_t)bytes)) {
            stop_reading(import);
        }
        import->about[bytes] = '\0';
    } else if ((flags & FLAG_REQUIRED) != 0) {
        stop(import, "the file holds what this version of hearth does not know");
    } else {
        (void)skip(import, bytes);
    }
    if (import->total_bytes > 0) {
        hearth_show_progress("importing", import->in.bytes, import->total_bytes, true);
    }
}

static bool read_head(struct kv_import *import, const char *path) {
    uint8_t head[HEAD_BYTES];
    uint32_t version;
    uint64_t checksum;
    if (!hearth_transfer_read(&import->in, head, sizeof head)) {
        (void)hearth_complain(1, "%s: %s", path, errno != 0 ? strerror(errno) : "not an export of hearth");
        return false;
    }
    GET(head, 8, version);
    GET(head, 24, import->total_bytes);
    GET(head, HEAD_BYTES - 8, checksum);
    if (memcmp(head, export_magic, sizeof export_magic) != 0) {
        (void)hearth_complain(1, "%s: not an export of hearth", path);
        return false;
    }
    if (checksum != hearth_checksum(head, HEAD_BYTES - 8)) {
        (void)hearth_complain(1, "%s: the file is damaged", path);
        return false;
    }
    if (version != EXPORT_VERSION) {
        (void)hearth_complain(1, "%s: written by another version of hearth (%" PRIu32 ")", path, version);
        return false;
    }
    return true;
}

static int report(struct kv_import *import) {
    int status = import->stop || import->damaged + import->sealed + import->skipped > 0;
    if (import->kv->options.json) {
        const int printed = hearth_show_json(HEARTH_SHOW_MEMBERS(
            {"new", import->fresh}, {"new_bytes", import->fresh_bytes}, {"known", import->known},
            {"damaged", import->damaged}, {"sealed", import->sealed}, {"other_version", import->skipped}));
        status = printed == 0 ? status : printed;
    } else {
        (void)printf("imported %s new %s, %s; %s there already\n", hearth_show_count(import->fresh).text,
                     hearth_plural(import->fresh, "file", "files"), hearth_show_bytes(import->fresh_bytes).text,
                     hearth_show_number(import->known, "was", "were").text);
    }
    if (import->sealed > 0) {
        (void)hearth_complain(1, "%" PRIu64 " %s encrypted and cannot be verified: name the key with --kv-key",
                              import->sealed, hearth_plural(import->sealed, "file is", "files are"));
    }
    if (import->skipped > 0) {
        (void)hearth_complain(1, "%" PRIu64 " %s another version of hearth wrote", import->skipped,
                              hearth_plural(import->skipped, "file that", "files that"));
    }
    return status;
}

int hearth_kv_import(struct kv *kv) {
    const char *path = kv->args[0];
    struct kv_import import = {.kv = kv};
    int status = hearth_transfer_open(path, &import.in);
    if (status != 0) {
        return status;
    }
    status = 1;
    if (read_head(&import, path)) {
        while (!import.ended && !import.stop) {
            import_section(&import);
        }
        hearth_show_progress_end();
        status = report(&import);
    }
    hearth_transfer_close(&import.in);
    return status;
}
