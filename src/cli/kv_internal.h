/* What the files of `hearth kv` share.
 *
 *     kv.c         the command line
 *     kv_view.c    what was loaded
 *     kv_load.c    the directory's files and what their headers say
 *     kv_remote.c  the items of a store that boxes share: loading, verify, gc
 *     kv_tree.c    conversations, from what the headers say
 *     kv_ls.c      ls, stat
 *     kv_verify.c  verify, gc, rm
 *     kv_export.c  export, import */
#ifndef HEARTH_CLI_KV_INTERNAL_H
#define HEARTH_CLI_KV_INTERNAL_H

#include "base/seal.h"
#include "console/show.h"
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
    struct hearth_directory *directory; /* one of them */
    struct hearth_remote_list *remote;
    struct hearth_seal *seal; /* NULL: no key was given */
};

/* --budget, or what a server takes that is told nothing, when `bytes` are there. */
uint64_t hearth_kv_budget(const struct kv *kv, uint64_t bytes);

/* Its path, or its address. */
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
    KV_SEALED,        /* with a key that is not at hand */
    KV_OTHER_VERSION, /* whole, and for another hearth */
    KV_DAMAGED,       /* its header; or the file is something else */
    KV_UNREADABLE,    /* the system says no */
};

struct kv_item {
    struct hearth_file file;
    struct hearth_remote_place place; /* in a store */
    uint32_t hits;
    enum kv_state state;
    struct hearth_record record; /* READABLE, with tokens; SEALED: positions only */
    int32_t page_tokens;
    struct hearth_digest end; /* of all tokens before p1: what continues it has this as its base, or begins so */
    uint32_t uses, chosen;    /* conversations, all and marked ones */
    uint32_t walk;            /* of the last walk that came by */
    bool whole;               /* and all of it lies on that way; else only its beginning */
};

/* Consecutive items of a model with one base, in the order of their tokens. */
struct kv_group {
    size_t first, n;
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
    uint64_t bytes, count[KV_UNREADABLE + 1], state_bytes[KV_UNREADABLE + 1];
    uint64_t pages, snapshots;
    int64_t oldest_us, newest_us;
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

/* Reads all headers. Complains, and false, when that fails. */
bool hearth_kv_load(struct kv *kv, struct kv_view *view);
void hearth_kv_view_finish(struct kv_view *view);
/* A model's place in the view. NULL: out of memory. */
struct kv_model *hearth_kv_model(struct kv_view *view, struct hearth_model_id id);
/* Adds a file to a model and its sums. False: out of memory. */
bool hearth_kv_add_item(struct kv_model *model, const struct kv_item *item);
void hearth_kv_count_item(struct kv_model *model, const struct kv_item *item);
/* Takes what a header says; `info` keeps no tokens. */
void hearth_kv_take_info(struct kv_item *item, struct hearth_format_info *info);
/* As a header was judged. */
enum kv_state hearth_kv_verdict_state(enum hearth_format_verdict verdict, bool readable);

/* ---- a store ---- */

bool hearth_kv_remote_load(struct kv *kv, struct kv_view *view);
int hearth_kv_remote_verify(struct kv *kv);
int hearth_kv_remote_gc(struct kv *kv);

/* A file's header. */
struct kv_head {
    int fd;
    int err; /* NOT_FOUND: gone; STATE: no file of hearth's; IO, with errno */
    uint64_t file_bytes;
    enum hearth_format_verdict verdict; /* with the name, the model and the length of the file in mind */
    struct hearth_format_info info;
};
void hearth_kv_head_open(struct kv *kv, const struct hearth_file_id *id, struct kv_head *head);
void hearth_kv_head_close(struct kv_head *head);
enum kv_state hearth_kv_state(const struct kv_head *head);
/* All of `len` bytes from `at`. False: not so many, or errno. */
bool hearth_kv_read(int fd, void *bytes, size_t len, uint64_t at);

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
