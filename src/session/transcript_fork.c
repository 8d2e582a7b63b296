/* Forks: where a prompt leaves what is known. Receipts print them; no decision depends on them.
 *
 * A prompt is compared with the earlier prompt of its own conversation (transcript_past.c) if that is known, otherwise
 * with what agrees with its text for longest behind the node where its walk has ended. */
#include "base/utf8.h"
#include "session/transcript_internal.h"

#include <stdlib.h>
#include <string.h>

void hearth_transcript_fork_finish(struct hearth_transcript_fork *fork) {
    free(fork->said);
    free(fork->then);
    free(fork->stretches);
    fork->stretches = NULL;
    fork->stretch_count = 0;
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

/* Copies whole characters without guards. */
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

static struct text_node *last_child(struct hearth_transcripts *transcripts, struct text_node *node) {
    if (node->child == NULL) {
        hearth_transcript_load_children(transcripts, node, 1, NULL, 0);
    }
    return node->child;
}

static bool append_reply(const struct reply *reply, struct hearth_buf *out) {
    return hearth_buf_append(out, reply->head, reply->head_len) && hearth_buf_append(out, reply->raw, reply->raw_len);
}

/* Appends the text of a path: a node, then always the most recently used child, and the last reply. What is not in
 * memory is loaded for the first ENOUGH bytes only. */
static bool path_text(struct hearth_transcripts *transcripts, struct text_node *node, struct hearth_buf *out) {
    enum { ENOUGH = 4096 };
    const size_t end = out->len + node->len + ENOUGH;
    const struct reply *reply = NULL;
    for (; node != NULL; node = out->len < end ? last_child(transcripts, node) : node->child) {
        reply = node->replies;
        if (!hearth_buf_append(out, node->text, node->len)) {
            return false;
        }
    }
    return reply == NULL || append_reply(reply, out);
}

/* The known text behind a node that agrees with the text for longest: that of a child and what followed, or that of a
 * reply. `*through`: the child, or the node itself for a reply. */
static bool nearest(struct hearth_transcripts *transcripts, struct text_node *node, const char *now, size_t left,
                    struct hearth_buf *out, struct text_node **through, const struct reply **said) {
    enum { NEAREST_MAX = 256, ARCHIVED_MAX = 16 };
    struct text_node *best = NULL;
    size_t longest = 0, compared = 0;
    hearth_transcript_load_children(transcripts, node, ARCHIVED_MAX, NULL, 0);
    for (struct text_node *child = node->child; child != NULL && compared++ < NEAREST_MAX; child = child->next) {
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
        const bool ok = append_reply(reply, &text);
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

/* Copies the record of an earlier prompt that went through a node, and the reply with which the text was compared. */
static void copy_record(struct hearth_transcripts *transcripts, struct text_node *node, const struct reply *reply,
                        struct hearth_transcript_fork *fork) {
    hearth_transcript_load_record(transcripts, node);
    while (node->said == NULL && last_child(transcripts, node) != NULL) {
        node = node->child;
        hearth_transcript_load_record(transcripts, node);
    }
    /* The record of a later turn tells more: also what came behind the difference. */
    for (struct text_node *later = node; later != NULL && reply == NULL; later = later->child) {
        node = later->said != NULL ? later : node;
    }
    fork->root = node->root;
    fork->said = node->said_count > 0 ? malloc((node->said_count + 1) * sizeof *fork->said) : NULL;
    if (fork->said == NULL) {
        return;
    }
    memcpy(fork->said, node->said, node->said_count * sizeof *fork->said);
    fork->said_count = node->said_count;
    if (reply == NULL && node->child == NULL) {
        reply = node->replies;
    }
    if (reply != NULL) {
        fork->said[fork->said_count++] = hearth_transcript_said_of(reply->message);
    }
}

/* Where the walk of a prompt ended, in front of new text, and what is found out about it. */
struct seeker {
    struct hearth_transcripts *transcripts;
    const struct hearth_transcript_prompt *prompt;
    struct text_node *at;
    size_t pos; /* byte of the prompt's text */
    struct hearth_transcript_fork *fork;
};

/* Fills the fork: from `common` on, `then` is the earlier prompt's text, which is taken. */
static void set_fork(const struct seeker *seeker, size_t offset, struct hearth_buf *then, size_t common,
                     struct text_node *through, const struct reply *reply) {
    struct hearth_transcript_fork *fork = seeker->fork;
    fork->known = true;
    fork->offset = offset;
    excerpt(fork->before, sizeof fork->before, (const char *)then->data + common, then->len - common);
    excerpt(fork->after, sizeof fork->after, seeker->prompt->text + offset, seeker->prompt->len - offset);
    copy_record(seeker->transcripts, through, reply, fork);
    /* A record that the archive has lost explains nothing. */
    fork->known = fork->said != NULL || seeker->transcripts->archive == NULL;
    fork->then_len = then->len - common;
    memmove(then->data, then->data + common, fork->then_len);
    fork->then = (char *)hearth_buf_take(then);
}

/* How many bytes are equal in both, in whole characters. */
static size_t common_text(const struct hearth_buf *then, const char *now, size_t left) {
    size_t common = common_bytes((const char *)then->data, then->len, now, left);
    while (common > 0 && common < left && ((unsigned char)now[common] & 0xC0) == 0x80) {
        common--;
    }
    return common;
}

/* Finds where the prompt parts from the earlier prompt of its conversation. False: it does not, or none is known. */
static bool find_own_fork(const struct seeker *seeker) {
    struct hearth_transcripts *transcripts = seeker->transcripts;
    struct hearth_transcript_fork *fork = seeker->fork;
    struct text_node *past = hearth_transcript_past(transcripts, seeker->prompt);
    struct hearth_buf then = {0};
    size_t from;
    bool parts = past != NULL && hearth_transcript_past_parts(past, seeker->at, seeker->pos, &from, &then);
    const size_t common = parts ? common_text(&then, seeker->prompt->text + from, seeker->prompt->len - from) : 0;
    parts = parts && common < then.len && from + common < seeker->prompt->len;
    if (parts) {
        const struct reply *reply = past->child == NULL ? past->replies : NULL;
        parts = reply == NULL ? past->child == NULL || path_text(transcripts, past->child, &then)
                              : append_reply(reply, &then);
        fork->own = parts;
    }
    if (parts) {
        const size_t offset = from + common;
        set_fork(seeker, offset, &then, common, past, past->child == NULL ? past->replies : NULL);
        fork->reach = fork->reach > offset ? fork->reach : offset;
    }
    hearth_buf_finish(&then);
    return parts;
}

/* Whether the messages with which both the record and the prompt begin include a reply. */
static bool share_replies(const struct hearth_transcript_fork *fork, const struct hearth_transcript_prompt *prompt) {
    bool replied = false;
    for (size_t i = 0; i < fork->said_count && i < prompt->message_count && !replied; i++) {
        if (!hearth_digest_equal(fork->said[i].says, prompt->messages[i]->says)) {
            return false;
        }
        replied = fork->said[i].role == HEARTH_ROLE_ASSISTANT;
    }
    return replied;
}

/* Whether the prompt found next to it in the tree is nearer than the one found by messages: the former shares the
 * conversation up to its first reply, and the latter does not, as with several conversations about one task. */
static bool is_nearer(const struct seeker *seeker, struct text_node *through, const struct reply *reply) {
    struct hearth_transcript_fork near = {.known = false};
    if (share_replies(seeker->fork, seeker->prompt)) {
        return false;
    }
    copy_record(seeker->transcripts, through, reply, &near);
    const bool nearer = share_replies(&near, seeker->prompt);
    hearth_transcript_fork_finish(&near);
    return nearer;
}

void hearth_transcript_find_fork(struct hearth_transcripts *transcripts, const struct hearth_transcript_prompt *prompt,
                                 struct text_node *at, size_t pos, struct hearth_transcript_fork *fork) {
    const struct seeker seeker = {transcripts, prompt, at, pos, fork};
    const char *now = prompt->text + pos;
    size_t left = prompt->len - pos;
    struct text_node *through;
    const struct reply *reply;
    struct hearth_buf then = {0};
    if (left > 0 && nearest(transcripts, at, now, left, &then, &through, &reply)) {
        const size_t common = common_text(&then, now, left);
        fork->reach = pos + common;
        /* Text that goes on where a reply had ended is another text, too. */
        bool longer =
            common == then.len && reply != NULL && !hearth_specials_ends(transcripts->specials, now, left, common);
        const bool leaves = then.len > 0 && common < left && (common < then.len || longer);
        const bool own = (leaves || reply != NULL) && find_own_fork(&seeker);
        if (leaves && (!own || is_nearer(&seeker, through, reply))) {
            hearth_transcript_fork_finish(fork);
            fork->own = own || prompt->names_previous;
            set_fork(&seeker, pos + common, &then, common, through, reply);
        }
        fork->summary = fork->known && hearth_transcript_is_summary(transcripts, prompt);
    }
    hearth_buf_finish(&then);
}

double hearth_transcript_fork_tokens(const struct hearth_transcript_fork *fork, size_t offset) {
    const struct hearth_transcript_stretch *all = fork->stretches;
    size_t i = 0;
    while (i + 1 < fork->stretch_count && all[i + 1].offset <= offset) {
        i++;
    }
    if (i + 1 >= fork->stretch_count) {
        return fork->stretch_count > 0 ? (double)all[i].token : (double)fork->token;
    }
    struct hearth_transcript_stretch from = all[i], to = all[i + 1];
    if (fork->reach >= from.offset && fork->reach < to.offset && fork->reach <= offset) {
        from = (struct hearth_transcript_stretch){fork->reach, (size_t)fork->token};
    }
    const size_t into = offset > from.offset ? offset - from.offset : 0;
    const double bytes = (double)(to.offset - from.offset), tokens = (double)to.token - (double)from.token;
    return (double)from.token + (bytes > 0 ? tokens * (double)into / bytes : 0);
}
