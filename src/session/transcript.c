/* Transcripts: prompts to tokens.
 *
 * A walk follows the tree from the root as far as the text is known. At each node there are three ways on, tried in
 * this order: a text that a reply was printed as before; a child whose text comes next; a reply that equals a
 * message of this prompt's history, when the next text, up to some control token, parses as this message. The
 * remaining text is tokenised without the lock, piece by piece, and added. The last piece (usually
 * "<|im_start|>assistant\n") is not added, because it will be the beginning of something longer. It stays with the
 * place as its head.
 *
 * Invariants. The tokens of a path stand for its text: they are what the tokenizer makes of it, or were sampled and
 * parse as the same message. Concatenated texts of a path are the prompt's text; nothing is skipped. */
#include "base/cancel.h"
#include "base/utf8.h"
#include "session/db.h"
#include "session/transcript_internal.h"

#include <stdlib.h>
#include <string.h>

#define REPLY_CUTS_MAX 12   /* most control tokens inside a printed reply */
#define HEADER_BYTES_MAX 48 /* "<|start_header_id|>assistant<|end_header_id|>\n\n" */

/* ---- what was said ---- */

static struct hearth_digest digest_of(const json_t *value) {
    char *text = value != NULL ? hearth_json_canonical(value) : NULL;
    struct hearth_digest digest = hearth_digest_bytes(text != NULL ? text : "", text != NULL ? strlen(text) : 0);
    free(text);
    return digest;
}

struct hearth_transcript_root hearth_transcript_root(const json_t *tools, const json_t *template_arguments,
                                                     struct hearth_digest salt) {
    return (struct hearth_transcript_root){digest_of(tools), digest_of(template_arguments), salt};
}

static struct hearth_digest say_nothing(const struct hearth_transcripts *transcripts,
                                        struct hearth_transcript_root root) {
    return hearth_transcript_start_key(transcripts, root.salt);
}

/* Whether two roots are equal; their salts are, because they have the same start. */
static bool same_root(const struct hearth_transcript_root *a, const struct hearth_transcript_root *b) {
    return hearth_digest_equal(a->tools, b->tools) && hearth_digest_equal(a->arguments, b->arguments);
}

/* Whether what the client sent may stand for what was sampled. */
static bool stands_for(const struct hearth_message *sent, const struct hearth_message *ours, bool ids) {
    if (!hearth_message_equal(sent, ours) || sent->call_count != ours->call_count) {
        return false;
    }
    for (size_t i = 0; ids && i < sent->call_count; i++) {
        const char *a = sent->calls[i].id, *b = ours->calls[i].id;
        if (a != NULL && b != NULL && strcmp(a, b) != 0) {
            return false;
        }
    }
    return true;
}

/* Several replies may say the same after different thoughts: one under the same root is preferred. */
static struct reply *find_standing(struct hearth_transcripts *transcripts, struct hearth_digest said,
                                   const struct hearth_transcript_root *root, const struct hearth_message *sent,
                                   bool ids) {
    struct reply *other = NULL;
    struct reply *reply = hearth_transcript_reply(transcripts, said);
    for (; reply != NULL; reply = hearth_transcript_next_reply(reply)) {
        if (!stands_for(sent, reply->message, ids)) {
            continue;
        }
        if (same_root(&reply->root, root)) {
            return reply;
        }
        other = other != NULL ? other : reply;
    }
    return other;
}

size_t hearth_transcripts_restore(struct hearth_transcripts *transcripts, struct hearth_transcript_root root,
                                  struct hearth_message **messages, size_t count, bool ids) {
    struct hearth_digest said = say_nothing(transcripts, root);
    size_t found = 0;
    hearth_db_lock(&transcripts->mutex);
    (void)hearth_transcript_start(transcripts, root.salt); /* loaded nodes hang on it */
    for (size_t i = 0; i < count; i++) {
        said = hearth_message_chain(said, messages[i]);
        if (messages[i]->role != HEARTH_ROLE_ASSISTANT) {
            continue;
        }
        struct reply *reply = find_standing(transcripts, said, &root, messages[i], ids);
        if (reply == NULL || !reply->complete) {
            hearth_transcript_load_said(transcripts, said);
            reply = find_standing(transcripts, said, &root, messages[i], ids);
        }
        if (reply != NULL) {
            struct hearth_message *sent = messages[i];
            messages[i] = hearth_message_ref(reply->message);
            hearth_message_unref(sent);
            found++;
        }
    }
    hearth_transcript_evict(transcripts);
    pthread_mutex_unlock(&transcripts->mutex);
    return found;
}

/* ---- the walk ---- */

/* A new piece of the prompt, from one control token to the next. */
struct prompt_piece {
    size_t pos, end, first, count; /* bytes of the text; tokens of the result */
};

/* A prompt on its way through the tree. */
struct prompt_walk {
    struct hearth_transcripts *transcripts;
    const struct hearth_transcript_prompt *prompt;
    struct hearth_transcript_result *result;
    struct text_node *at;
    size_t pos;  /* byte of the text */
    bool starts; /* the text begins the prompt */
    struct prompt_piece *pieces;
    size_t piece_count, piece_cap;
};

static bool token_text_is(struct hearth_engine *engine, hearth_token token, const char *text, size_t len) {
    char own[256];
    size_t n = engine->ops->token_text(engine, token, true, own, sizeof own);
    return n <= sizeof own && n <= len && memcmp(own, text, n) == 0;
}

/* Tokens of a tokenised piece that begins at byte `pos` and that end at or before byte `offset`. */
static size_t tokens_before(const struct prompt_walk *walk, const hearth_token *tokens, size_t count, size_t pos,
                            size_t offset) {
    struct hearth_engine *engine = walk->transcripts->engine;
    size_t i = 0;
    offset -= hearth_guards_count(walk->prompt->text + pos, offset - pos);
    /* A BOS token that the tokenizer put in front stands for no text. */
    if (walk->starts && pos == 0 && count > 0 &&
        !token_text_is(engine, tokens[0], walk->prompt->text, walk->prompt->len)) {
        i = 1;
    }
    for (size_t end = pos; i < count; i++) {
        char text[4];
        end += engine->ops->token_text(engine, tokens[i], true, text, sizeof text);
        if (end > offset) {
            break;
        }
    }
    return i;
}

/* Places the marks that fall into the piece [pos, end), with the result's tokens from `first` on. A mark just
 * behind a header goes before the header: what comes instead of this message may have another one. */
static void place_marks(struct prompt_walk *walk, size_t pos, size_t end, size_t first, bool sampled) {
    const struct hearth_transcript_prompt *prompt = walk->prompt;
    struct hearth_transcript_result *result = walk->result;
    for (size_t i = 0; i < prompt->mark_count; i++) {
        size_t offset = prompt->marks[i];
        if (offset < pos || offset >= end) {
            continue;
        }
        size_t token = first;
        if ((walk->starts && pos == 0) || (offset - pos > HEADER_BYTES_MAX && !sampled)) {
            token += tokens_before(walk, result->tokens.v + first, result->tokens.n - first, pos, offset);
        }
        result->placed[i] = (int32_t)token;
        int32_t last = result->mark_count > 0 ? result->marks[result->mark_count - 1] : 0;
        if ((int32_t)token > last && result->mark_count < HEARTH_TRANSCRIPT_MARKS_MAX) {
            result->marks[result->mark_count++] = (int32_t)token;
        }
    }
}

/* Appends a node's tokens. */
static bool take_tokens(struct prompt_walk *walk, struct text_node *node) {
    struct hearth_transcript_result *result = walk->result;
    if (!hearth_tokens_append(&result->tokens, node->tokens, node->token_count)) {
        return false;
    }
    result->known_tokens += node->token_count;
    result->sampled_tokens += node->sampled;
    walk->at = node;
    return true;
}

static bool step_to(struct prompt_walk *walk, struct text_node *node) {
    size_t first = walk->result->tokens.n;
    if (!take_tokens(walk, node)) {
        return false;
    }
    place_marks(walk, walk->pos, walk->pos + node->len, first, node->sampled > 0);
    walk->pos += node->len;
    return true;
}

/* The node of a text as which a reply was printed before. The text must end where it can be cut: "the end" is not "the
 * end of it". */
static struct text_node *known_reply(const struct prompt_walk *walk) {
    const struct hearth_transcript_prompt *prompt = walk->prompt;
    for (const struct reply *reply = walk->at->replies; reply != NULL; reply = reply->next) {
        for (size_t i = 0; i < reply->variant_count; i++) {
            size_t end = walk->pos + reply->variants[i];
            if (end > prompt->len ||
                !hearth_specials_ends(walk->transcripts->specials, prompt->text, prompt->len, end)) {
                continue;
            }
            struct text_node *node =
                hearth_transcript_child(walk->transcripts, walk->at, prompt->text + walk->pos, reply->variants[i]);
            if (node != NULL) {
                return node;
            }
        }
    }
    return NULL;
}

static bool same_text(const char *a, const char *b) {
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* Whether a message is the reply's own, or a copy that was evicted and loaded again. Ids count. */
static bool is_message(const struct hearth_message *a, const struct hearth_message *b) {
    if (a == b) {
        return true;
    }
    bool same = hearth_digest_equal(a->says, b->says) && a->content_len == b->content_len &&
                memcmp(a->content, b->content, a->content_len) == 0 && same_text(a->reasoning, b->reasoning) &&
                a->call_count == b->call_count;
    for (size_t i = 0; same && i < a->call_count; i++) {
        same = same_text(a->calls[i].id, b->calls[i].id) && same_text(a->calls[i].name, b->calls[i].name) &&
               same_text(a->calls[i].arguments, b->calls[i].arguments);
    }
    return same;
}

static bool in_history(const struct prompt_walk *walk, const struct hearth_message *message) {
    for (size_t i = walk->prompt->message_count; i-- > 0;) {
        if (is_message(walk->prompt->messages[i], message)) {
            return true;
        }
    }
    return false;
}

/* Whether the text [begin, end) of the prompt reads as the reply. `plain` has room for it. */
static bool reads_as(const struct prompt_walk *walk, const struct reply *reply, size_t begin, size_t end, char *plain) {
    const struct hearth_transcript_prompt *prompt = walk->prompt;
    memcpy(plain, prompt->text + begin, end - begin);
    const struct hearth_transcript_print print = {reply->head, reply->head_len, plain,
                                                  hearth_guards_strip(plain, end - begin)};
    return hearth_message_alike(print.text, print.len, reply->raw, reply->raw_len) ||
           prompt->reads(prompt->user, &print, reply->message);
}

/* The end of the text that stands for the reply here, or 0. */
static size_t end_of_reply(const struct prompt_walk *walk, const struct reply *reply) {
    const struct hearth_transcript_prompt *prompt = walk->prompt;
    size_t begin = walk->pos + reply->head_len;
    if (begin > prompt->len || memcmp(prompt->text + walk->pos, reply->head, reply->head_len) != 0 ||
        !in_history(walk, reply->message)) {
        return 0;
    }
    size_t end = begin;
    char *plain = NULL;
    bool reads = false;
    for (int i = 0; i < REPLY_CUTS_MAX && !reads && end <= prompt->len; i++, end++) {
        end = hearth_specials_end(walk->transcripts->specials, prompt->text, prompt->len, end);
        char *more = realloc(plain, end - begin + 1);
        if (more == NULL) {
            break;
        }
        plain = more;
        reads = reads_as(walk, reply, begin, end, plain);
    }
    free(plain);
    return reads ? end - 1 : 0;
}

/* Adds a node for a reply of the history that is printed in a new way. */
static struct text_node *new_print(struct prompt_walk *walk) {
    for (struct reply *reply = walk->at->replies; reply != NULL; reply = reply->next) {
        size_t end = end_of_reply(walk, reply);
        if (end > walk->pos && reply->variant_count < VARIANTS_MAX) {
            struct text_node *node =
                hearth_transcript_add(walk->transcripts, walk->at, walk->prompt->text + walk->pos, end - walk->pos,
                                      reply->tokens, reply->head_tokens + reply->sampled, reply->sampled);
            if (node != NULL) {
                node->print_of = reply->id;
                reply->variants[reply->variant_count++] = node->len;
            }
            return node;
        }
    }
    return NULL;
}

static bool walk_known(struct prompt_walk *walk) {
    const struct hearth_transcript_prompt *prompt = walk->prompt;
    struct hearth_specials *specials = walk->transcripts->specials;
    while (walk->pos < prompt->len) {
        struct text_node *node = known_reply(walk);
        if (node == NULL) {
            size_t end = hearth_specials_next(specials, prompt->text, prompt->len, walk->pos + 1);
            node = end < prompt->len
                       ? hearth_transcript_child(walk->transcripts, walk->at, prompt->text + walk->pos, end - walk->pos)
                       : NULL;
        }
        if (node == NULL) {
            node = new_print(walk);
        }
        if (node == NULL) {
            break;
        }
        if (!step_to(walk, node)) {
            return false;
        }
    }
    return true;
}

/* ---- a prompt that begins with a reply as it was sampled ---- */

static bool take_path(struct prompt_walk *walk, struct text_node *node) {
    return node->parent == NULL || node->start || (take_path(walk, node->parent) && take_tokens(walk, node));
}

/* The reply behind which the prompt begins. Its path is taken over, so it must have the same root. */
static struct reply *prefix_reply(const struct prompt_walk *walk, struct hearth_digest said) {
    const struct hearth_transcript_prompt *prompt = walk->prompt;
    struct reply *reply = hearth_transcript_reply(walk->transcripts, said);
    while (reply != NULL && !(same_root(&reply->root, &prompt->root) &&
                              is_message(reply->message, prompt->messages[prompt->prefix_messages - 1]))) {
        reply = hearth_transcript_next_reply(reply);
    }
    return reply;
}

/* Starts the walk behind that reply, at a node with the reply's sampled text. */
static int start_behind(struct prompt_walk *walk) {
    const struct hearth_transcript_prompt *prompt = walk->prompt;
    struct hearth_digest said = say_nothing(walk->transcripts, prompt->root);
    for (size_t i = 0; i < prompt->prefix_messages; i++) {
        said = hearth_message_chain(said, prompt->messages[i]);
    }
    struct reply *reply = prefix_reply(walk, said);
    if (reply == NULL) { /* it was evicted since it was found */
        hearth_transcript_load_said(walk->transcripts, said);
        reply = prefix_reply(walk, said);
    }
    if (reply == NULL) {
        return HEARTH_ERR_STATE;
    }
    struct hearth_buf text = {0};
    struct text_node *node = NULL;
    if (hearth_buf_append(&text, reply->head, reply->head_len) &&
        hearth_buf_append(&text, reply->raw, reply->raw_len)) {
        node = hearth_transcript_child(walk->transcripts, reply->node, (const char *)text.data, text.len);
        if (node == NULL) {
            node = hearth_transcript_add(walk->transcripts, reply->node, (const char *)text.data, text.len,
                                         reply->tokens, reply->head_tokens + reply->sampled, reply->sampled);
        }
    }
    hearth_buf_finish(&text);
    return node != NULL && take_path(walk, node) ? HEARTH_OK : HEARTH_ERR_NOMEM;
}

size_t hearth_transcripts_cut(struct hearth_transcripts *transcripts, const char *text, size_t len, size_t end) {
    return hearth_specials_last(transcripts->specials, text, len, end);
}

const struct hearth_specials *hearth_transcripts_specials(const struct hearth_transcripts *transcripts) {
    return transcripts->specials;
}

/* ---- what is new ---- */

/* Tokenises the rest, each piece from one control token to the next. */
static int tokenize_rest(struct prompt_walk *walk) {
    const struct hearth_transcript_prompt *prompt = walk->prompt;
    struct hearth_tokens *tokens = &walk->result->tokens;
    for (size_t pos = walk->pos; pos < prompt->len;) {
        size_t end = hearth_specials_next(walk->transcripts->specials, prompt->text, prompt->len, pos + 1);
        size_t first = tokens->n;
        int err = hearth_cancel_poll();
        err = err < 0 ? err
                      : hearth_specials_tokenize(walk->transcripts->specials, prompt->text + pos, end - pos,
                                                 walk->starts && pos == 0, tokens);
        if (err < 0) {
            return err;
        }
        if (!HEARTH_BUF_ROOM(walk->pieces, walk->piece_count, walk->piece_cap)) {
            return HEARTH_ERR_NOMEM;
        }
        walk->pieces[walk->piece_count++] = (struct prompt_piece){pos, end, first, tokens->n - first};
        place_marks(walk, pos, end, first, false);
        pos = end;
    }
    return HEARTH_OK;
}

/* Adds the pieces but the last below the walk's node and moves it there. */
static bool add_pieces(struct prompt_walk *walk) {
    for (size_t i = 0; i + 1 < walk->piece_count; i++) {
        const struct prompt_piece *piece = &walk->pieces[i];
        const char *text = walk->prompt->text + piece->pos;
        size_t len = piece->end - piece->pos;
        struct text_node *node = hearth_transcript_known_child(walk->transcripts, walk->at, text, len);
        if (node == NULL) {
            node = hearth_transcript_add(walk->transcripts, walk->at, text, len, walk->result->tokens.v + piece->first,
                                         piece->count, 0);
        }
        if (node == NULL) {
            return false;
        }
        walk->at = node;
    }
    return true;
}

/* ---- what a fork says of tokens, after everything is tokenised ---- */

/* Fills the fork's stretches; out of memory, there are none. */
static void note_stretches(const struct prompt_walk *walk) {
    struct hearth_transcript_fork *fork = &walk->result->fork;
    const size_t n = walk->piece_count;
    fork->stretches = calloc(n + 1, sizeof *fork->stretches);
    for (size_t i = 0; i < n && fork->stretches != NULL; i++) {
        fork->stretches[i] = (struct hearth_transcript_stretch){walk->pieces[i].pos, walk->pieces[i].first};
    }
    if (fork->stretches != NULL) {
        fork->stretches[n] = (struct hearth_transcript_stretch){walk->prompt->len, walk->result->tokens.n};
        fork->stretch_count = n + 1;
    }
}

/* The token of the prompt that contains a byte of its new text. After everything was tokenised. */
static int32_t new_token(const struct prompt_walk *walk, size_t offset) {
    const struct hearth_transcript_result *result = walk->result;
    for (size_t i = 0; i < walk->piece_count; i++) {
        const struct prompt_piece *piece = &walk->pieces[i];
        if (offset >= piece->pos && offset < piece->end) {
            return (int32_t)(piece->first +
                             tokens_before(walk, result->tokens.v + piece->first, piece->count, piece->pos, offset));
        }
    }
    return (int32_t)result->known_tokens;
}

/* ---- places ---- */

static struct hearth_transcript_place *place_create(const struct prompt_walk *walk) {
    const struct hearth_transcript_prompt *prompt = walk->prompt;
    struct hearth_transcript_place *place = calloc(1, sizeof *place);
    if (place == NULL) {
        return NULL;
    }
    const struct prompt_piece *last = walk->piece_count > 0 ? &walk->pieces[walk->piece_count - 1] : NULL;
    place->head_len = last != NULL ? last->end - last->pos : 0;
    place->head = malloc(place->head_len + 1);
    if (place->head == NULL ||
        (last != NULL && !hearth_tokens_append(&place->tokens, walk->result->tokens.v + last->first, last->count))) {
        free(place->head);
        free(place);
        return NULL;
    }
    if (last != NULL) {
        memcpy(place->head, prompt->text + last->pos, place->head_len);
    }
    place->root = prompt->root;
    place->said = say_nothing(walk->transcripts, prompt->root);
    for (size_t i = 0; i < prompt->message_count; i++) {
        place->said = hearth_message_chain(place->said, prompt->messages[i]);
    }
    return place;
}

static void record(const struct prompt_walk *walk) {
    const struct hearth_transcript_prompt *prompt = walk->prompt;
    struct hearth_said *said = calloc(prompt->message_count + 1, sizeof *said);
    if (said == NULL) {
        return; /* out of memory: a later diagnosis says less */
    }
    for (size_t i = 0; i < prompt->message_count; i++) {
        said[i] = hearth_transcript_said_of(prompt->messages[i]);
    }
    hearth_transcript_record(walk->transcripts, walk->at, prompt->root, said, prompt->message_count);
}

/* Adds what is new, and pins the place. Under the lock. */
static bool add_new(struct prompt_walk *walk) {
    struct hearth_transcript_place *place = add_pieces(walk) ? place_create(walk) : NULL;
    if (place == NULL) {
        return false;
    }
    record(walk);
    hearth_transcript_note(walk->transcripts, walk->at, walk->prompt);
    place->node = walk->at;
    place->node->pins++;
    hearth_transcript_touch(walk->transcripts, walk->at);
    walk->result->place = place;
    return true;
}

int hearth_transcripts_tokenize(struct hearth_transcripts *transcripts, const struct hearth_transcript_prompt *prompt,
                                struct hearth_transcript_result *result) {
    *result = (struct hearth_transcript_result){0};
    struct prompt_walk walk = {
        .transcripts = transcripts, .prompt = prompt, .result = result, .starts = prompt->prefix_messages == 0};
    hearth_db_lock(&transcripts->mutex);
    walk.at = hearth_transcript_start(transcripts, prompt->root.salt);
    if (walk.at == NULL) {
        pthread_mutex_unlock(&transcripts->mutex);
        return HEARTH_ERR_NOMEM;
    }
    int err = prompt->prefix_messages > 0 ? start_behind(&walk) : HEARTH_OK;
    if (err == HEARTH_OK && !walk_known(&walk)) {
        err = HEARTH_ERR_NOMEM;
    }
    if (err == HEARTH_OK) {
        hearth_transcript_find_fork(transcripts, prompt, walk.at, walk.pos, &result->fork);
    }
    walk.at->pins++;
    struct text_node *pinned = walk.at;
    pthread_mutex_unlock(&transcripts->mutex);

    if (err == HEARTH_OK) {
        err = tokenize_rest(&walk);
    }
    hearth_db_lock(&transcripts->mutex);
    if (err == HEARTH_OK && !add_new(&walk)) {
        err = HEARTH_ERR_NOMEM;
    }
    pinned->pins--;
    hearth_transcript_evict(transcripts);
    pthread_mutex_unlock(&transcripts->mutex);
    if (err == HEARTH_OK && result->fork.known) {
        result->fork.token = new_token(&walk, result->fork.reach);
        note_stretches(&walk);
    }
    free(walk.pieces);
    if (err != HEARTH_OK) {
        hearth_tokens_finish(&result->tokens);
        hearth_transcript_fork_finish(&result->fork);
        *result = (struct hearth_transcript_result){0};
        return err;
    }
    return HEARTH_OK;
}

void hearth_transcript_release(struct hearth_transcripts *transcripts, struct hearth_transcript_place *place) {
    if (place == NULL) {
        return;
    }
    pthread_mutex_lock(&transcripts->mutex);
    place->node->pins--;
    hearth_transcript_evict(transcripts);
    pthread_mutex_unlock(&transcripts->mutex);
    hearth_tokens_finish(&place->tokens);
    free(place->head);
    free(place);
}

/* ---- replies ---- */

static struct reply *make_reply(struct hearth_engine *engine, const struct hearth_transcript_place *place,
                                struct hearth_message *message, const hearth_token *sampled, size_t count) {
    struct reply *reply = calloc(1, sizeof *reply);
    struct hearth_tokens tokens = {0};
    if (reply == NULL) {
        return NULL;
    }
    reply->message = hearth_message_ref(message);
    reply->link.key = hearth_message_chain(place->said, message);
    reply->node = place->node;
    reply->root = place->root;
    reply->head = malloc(place->head_len + 1);
    bool ok = reply->head != NULL && hearth_tokens_append(&tokens, place->tokens.v, place->tokens.n) &&
              hearth_tokens_append(&tokens, sampled, count);
    if (ok) {
        memcpy(reply->head, place->head, place->head_len);
        reply->head_len = place->head_len;
        reply->head_tokens = place->tokens.n;
        reply->sampled = count;
    }
    reply->tokens = tokens.v;
    if (!ok || !hearth_transcript_add_raw(engine, reply) || !hearth_transcript_name_reply(reply)) {
        hearth_transcript_free_reply(reply);
        return NULL;
    }
    return reply;
}

void hearth_transcripts_remember(struct hearth_transcripts *transcripts, const struct hearth_transcript_place *place,
                                 struct hearth_message *message, const hearth_token *sampled, size_t count) {
    struct reply *reply = make_reply(transcripts->engine, place, message, sampled, count);
    if (reply == NULL) {
        return; /* out of memory: the reply will be tokenised as it is printed */
    }
    pthread_mutex_lock(&transcripts->mutex);
    hearth_transcript_load_said(transcripts, reply->link.key); /* older ones come before it */
    struct reply *added = hearth_transcript_add_reply(transcripts, reply);
    if (added != NULL) {
        added->complete = true;
        added->root.salt = place->root.salt; /* a root from the archive has no salt */
        hearth_transcript_note_reply(transcripts, added);
        hearth_transcript_save(transcripts, added);
    } else {
        hearth_transcript_free_reply(reply);
    }
    hearth_transcript_evict(transcripts);
    pthread_mutex_unlock(&transcripts->mutex);
}
