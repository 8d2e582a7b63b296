/* What the files of `hearth kv` share.
 *
 *     kv.c         the command line
 *     kv_load.c    the items of the directory or the store, and what their headers say
 *     kv_tree.c    conversations, from what the headers say
 *     kv_ls.c      ls, stat
 *     kv_verify.c  verify, gc
 *     kv_rm.c      rm
 *     kv_export.c  export, import */
#ifndef HEARTH_CLI_KV_INTERNAL_H
#define HEARTH_CLI_KV_INTERNAL_H

#include "base/seal.h"
#include "console/show.h"
#include "console/transfer.h"
#include "tier/directory.h"
#include "tier/format.h"
#include "tier/remote_list.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the command line ---- */

struct kv_options {
    const char *dir, *key_file, *model, *remote, *remote_ca;
    int64_t budget_mib; /* -1: not given */
    bool json, yes, all;
};

struct kv {
    struct kv_options options; /* first: the command line is read into it */
    char *const *args;
    int arg_count;
    struct hearth_directory *directory; /* NULL: a store */
    struct hearth_remote_list *remote;  /* NULL: a directory */
    struct hearth_seal *seal;           /* NULL: no key was given */
};

/* --budget, or a server's default when the directory has `bytes`. */
uint64_t hearth_kv_budget(const struct kv *kv, uint64_t bytes);

/* The directory's path, or the store's address. */
static inline const char *hearth_kv_place(const struct kv *kv) {
    return kv->remote ? hearth_remote_list_label(kv->remote) : hearth_directory_path(kv->directory);
}

int hearth_kv_ls(struct kv *kv);
int hearth_kv_stat(struct kv *kv);
int hearth_kv_verify(struct kv *kv);
int hearth_kv_gc(struct kv *kv);
int hearth_kv_rm(struct kv *kv);
int hearth_kv_export(struct kv *kv);
int hearth_kv_import(struct kv *kv);

/* ---- what is there ---- */

enum kv_state {
    KV_READABLE,
    KV_SEALED,        /* encrypted with a key that is not given */
    KV_OTHER_VERSION, /* written by another version of hearth */
    KV_DAMAGED,       /* its header is damaged, or the file is something else */
    KV_UNREADABLE,    /* reading fails */
};

struct kv_item {
    struct hearth_file file;
    struct hearth_remote_place place; /* in a store */
    uint32_t hits;
    enum kv_state state;
    struct hearth_record record; /* READABLE, with tokens; SEALED: positions only */
    struct hearth_digest end;    /* of all tokens before p1: what continues it has this as its base, or begins so */
    uint32_t uses, chosen;       /* conversations, all and marked ones */
    uint32_t walk;               /* of the last walk that came by */
    bool whole;                  /* and all of it lies on that way; else only its beginning */
};

/* Consecutive items of a model with one base, in the order of their tokens. */
struct kv_group {
    size_t first, n;
    const struct hearth_record *of; /* of the first one */
};

struct kv_conversation {
    struct kv_item *leaf;
    size_t model; /* index */
    uint64_t own_bytes, shared_bytes;
    int64_t used_us; /* last use, Unix */
    uint32_t hits, pages, snapshots, files;
    bool complete;               /* nothing is missing between its beginning and its end */
    const char *text, *own_text; /* first words ("" where those are in a page that goes on differently), and words of
                                    what it does not share; borrowed, or "" */
};

/* Sums over the items of a model, or of several. */
struct kv_totals {
    uint64_t files, bytes, pages, snapshots, conversations;
    uint64_t tokens; /* that have state of their own: what pages hold, each once */
    int64_t oldest_us, newest_us;
};
void hearth_kv_totals_add(struct kv_totals *totals, const struct kv_totals *more);

struct kv_model {
    struct hearth_model_id id;
    char about[256];
    struct kv_item *items;
    size_t n, cap;
    struct kv_item **sorted; /* the readable ones: by base, then tokens */
    size_t sorted_n;
    struct kv_item **ends;   /* the same by `end` */
    struct kv_group *groups; /* by base */
    size_t group_n;
    struct kv_totals totals;
    uint64_t count[KV_UNREADABLE + 1], state_bytes[KV_UNREADABLE + 1];
};

struct kv_view {
    struct kv_model *models;
    size_t model_n, model_cap;
    struct kv_conversation *conversations; /* newest first */
    size_t conversation_n, conversation_cap;
    int id_digits; /* so many of a name tell conversations apart */
    uint32_t walks;
    int err;
};

/* Reads all headers. False after a complaint. */
bool hearth_kv_load(struct kv *kv, struct kv_view *view);
void hearth_kv_view_finish(struct kv_view *view);

/* The header of a file, or of a store's item. */
struct kv_head {
    int err;                          /* of the file. NOT_FOUND: gone; STATE: no file of hearth's; IO, with errno */
    struct hearth_transfer_in in;     /* the file, read up to its payload */
    struct hearth_buf header;         /* likewise */
    struct hearth_remote_place place; /* of the store's item */
    uint64_t file_bytes;
    enum hearth_format_verdict verdict; /* also on its name, model and length */
    struct hearth_format_info info;
};
/* Reads a file's header. To be closed in any case. */
void hearth_kv_head_open(struct kv *kv, const struct hearth_file_id *id, struct kv_head *head);
/* Likewise of an item that the store has listed. */
void hearth_kv_head_listed(struct kv *kv, const struct hearth_remote_listed *listed, struct kv_head *head);
void hearth_kv_head_close(struct kv_head *head);
enum kv_state hearth_kv_state(const struct kv_head *head);
/* Reads from an item of `bytes` as much as its header turns out to be. False: the input ends (errno is 0), or fails. */
bool hearth_kv_read_header(struct hearth_transfer_in *in, uint64_t bytes, const struct hearth_seal *seal,
                           struct hearth_buf *header, enum hearth_format_verdict *verdict,
                           struct hearth_format_info *info);

/* Items that a command is about. Zeroed: none. */
struct kv_list {
    struct kv_item **items; /* the caller's to free */
    size_t n, cap;
    uint64_t bytes; /* of their files */
    bool nomem;     /* one is missing */
};
/* For hearth_kv_walk(). */
void hearth_kv_list_add(void *list, struct kv_item *item);

/* Finds the conversations of what was loaded. False: out of memory. */
bool hearth_kv_find_conversations(struct kv_view *view);
/* Calls for each item that a conversation needs, in no order. False: something is missing on the way. */
bool hearth_kv_walk(struct kv_view *view, const struct kv_conversation *conversation,
                    void (*visit)(void *user, struct kv_item *item), void *user);
/* The conversation with an id that begins so, or NULL after a complaint. */
struct kv_conversation *hearth_kv_find(struct kv_view *view, const char *id);
void hearth_kv_id(const struct kv_view *view, const struct kv_conversation *conversation, char out[33]);

#endif
