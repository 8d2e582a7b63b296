/* Forks: where a prompt leaves what was known, and what had stood there. For receipts; nothing is decided by it. */
#include "base/utf8.h"
#include "session/transcript_internal.h"

#include <stdlib.h>
#include <string.h>

void hearth_transcript_fork_finish(struct hearth_transcript_fork *fork) {
    free(fork->said);
    free(fork->then);
    fork->said = NULL;
    fork->then = NULL;
    fork->said_count = fork->then_len = 0;
}

static size_t common_bytes(const char *a, size_t na, const char *b, size_t nb) {
    size_t n = na < nb ? na : nb, i = 0;
    while (i < n && a[i] == b[i]) {
        i++;
    }
    return i;
}

/* Whole characters, from the beginning of one on, without guards. */
static void excerpt(char *out, size_t cap, const char *text, size_t len) {
    struct hearth_buf repaired = {0};
    char plain[sizeof((struct hearth_transcript_fork *)NULL)->before];
    len = len < cap / 2 ? len : cap / 2;
    memcpy(plain, text, len);
    len = hearth_utf8_complete(plain, hearth_guards_strip(plain, len));
    out[0] = '\0';
    if (hearth_utf8_append(&repaired, plain, len) && repaired.len < cap) {
        memcpy(out, repaired.data, repaired.len);
        out[repaired.len] = '\0';
    }
    hearth_buf_finish(&repaired);
}

static struct node *last_child(struct hearth_transcripts *transcripts, struct node *node) {
    if (node->child == NULL) {
        hearth_transcript_load_children(transcripts, node, 1);
    }
    return node->child;
}

/* Appends the text of a path: a node and, from there, always the child used last. What is not in memory is loaded for
 * the first ENOUGH bytes only. */
static bool path_text(struct hearth_transcripts *transcripts, struct node *node, struct hearth_buf *out) {
    enum { ENOUGH = 4096 };
    const size_t end = out->len + node->len + ENOUGH;
    for (; node != NULL; node = out->len < end ? last_child(transcripts, node) : node->child) {
        if (!hearth_buf_append(out, node->text, node->len)) {
            return false;
        }
    }
    return true;
}

/* What is known behind a node and goes along with the text for longest: the text of a child and what followed it, or of
 * a reply. `*through` is the child, or the node itself for a reply. */
static bool nearest(struct hearth_transcripts *transcripts, struct node *node, const char *now, size_t left,
                    struct hearth_buf *out, struct node **through, const struct reply **said) {
    enum { CHILDREN_MAX = 256, ARCHIVED_MAX = 16 };
    struct node *best = NULL;
    size_t longest = 0, looked = 0;
    hearth_transcript_load_children(transcripts, node, ARCHIVED_MAX);
    for (struct node *child = node->child; child != NULL && looked++ < CHILDREN_MAX; child = child->next) {
        size_t common = common_bytes(child->text, child->len, now, left);
        if (best == NULL || common > longest) {
            best = child;
            longest = common;
        }
    }
    const struct reply *reply = node->replies;
    *through = best != NULL ? best : node;
    *said = NULL;
    if (reply != NULL) {
        struct hearth_buf text = {0};
        bool ok = hearth_buf_append(&text, reply->head, reply->head_len) &&
                  hearth_buf_append(&text, reply->raw, reply->raw_len);
        if (ok && (best == NULL || common_bytes((const char *)text.data, text.len, now, left) > longest)) {
            *through = node;
            *said = reply;
            *out = text;
            return true;
        }
        hearth_buf_finish(&text);
    }
    return best == NULL || path_text(transcripts, best, out);
}

/* The record of an earlier prompt that came through a node, and the reply to it that the text was compared with. */
static void copy_record(struct hearth_transcripts *transcripts, struct node *node, const struct reply *reply,
                        struct hearth_transcript_fork *fork) {
    hearth_transcript_load_record(transcripts, node);
    while (node->said == NULL && last_child(transcripts, node) != NULL) {
        node = node->child;
        hearth_transcript_load_record(transcripts, node);
    }
    fork->root = node->root;
    fork->said = node->said_count > 0 ? malloc((node->said_count + 1) * sizeof *fork->said) : NULL;
    if (fork->said == NULL) {
        return;
    }
    memcpy(fork->said, node->said, node->said_count * sizeof *fork->said);
    fork->said_count = node->said_count;
    if (reply != NULL) {
        fork->said[fork->said_count++] = hearth_transcript_said(reply->message);
    }
}

void hearth_transcript_find_fork(const struct walk *walk) {
    struct hearth_transcript_fork *fork = &walk->result->fork;
    const char *now = walk->prompt->text + walk->pos;
    size_t left = walk->prompt->len - walk->pos;
    struct node *through;
    const struct reply *reply;
    struct hearth_buf then = {0};
    if (walk->pos < walk->prompt->len && nearest(walk->transcripts, walk->at, now, left, &then, &through, &reply) &&
        then.len > 0) {
        size_t common = common_bytes((const char *)then.data, then.len, now, left);
        while (common > 0 && common < left && ((unsigned char)now[common] & 0xC0) == 0x80) {
            common--;
        }
        /* A reply's text that goes on where the reply had ended is another text, too. */
        bool longer = common == then.len && reply != NULL &&
                      !hearth_specials_ends(walk->transcripts->specials, now, left, common);
        fork->known = common < left && (common < then.len || longer);
        if (fork->known) {
            fork->offset = walk->pos + common;
            excerpt(fork->before, sizeof fork->before, (const char *)then.data + common, then.len - common);
            excerpt(fork->after, sizeof fork->after, now + common, left - common);
            copy_record(walk->transcripts, through, reply, fork);
            /* A record that the archive has lost explains nothing. */
            fork->known = fork->said != NULL || walk->transcripts->archive == NULL;
            fork->then_len = then.len - common;
            memmove(then.data, then.data + common, fork->then_len);
            fork->then = (char *)hearth_buf_take(&then);
        }
    }
    hearth_buf_finish(&then);
}

void hearth_transcript_find_fork_token(const struct walk *walk, const struct pieces *pieces) {
    struct hearth_transcript_result *result = walk->result;
    size_t token = result->known_tokens;
    for (size_t i = 0; i < pieces->n; i++) {
        const struct piece *piece = &pieces->v[i];
        if (result->fork.offset >= piece->pos && result->fork.offset < piece->end) {
            token = piece->first + hearth_transcript_tokens_before(walk, result->tokens.v + piece->first, piece->count,
                                                                   piece->pos, result->fork.offset);
        }
    }
    result->fork.token = (int32_t)token;
}
