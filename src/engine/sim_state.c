/* Sim's memory: sequences, cells, pages and snapshots.
 *
 * The state of a sequence is a digest chained over its tokens, and every class keeps it where a real model of that
 * class would:
 *
 *   PAGES            in cells. A cell holds what attention was before and after it; what attention gives at n is
 *                    the chain over all cells the sequence holds: a missing, foreign or displaced one breaks it.
 *   PAGES_SNAPSHOT   in cells and, for exactly one position, in the sequence. The two must agree.
 *   SNAPSHOT         in the sequence.
 *   OPAQUE           in the sequence; cells are counted only.
 *
 * A sliding window is the sequence's state at each of the last positions. A piece of it holds them from p0 to p1, and
 * one that does not go on where the piece before it ended, or pieces that are fewer than a token sees, poison it.
 *
 * Wherever content is wrong, the digest is *poisoned*: it becomes another value, and so does everything computed on top
 * of it. Wrong reuse therefore shows in the output, as it would with a model, and never as an error that costs only
 * recomputation. Misuse that a program can see beforehand (a gap, an incomplete sequence) is an assertion.
 *
 * Invariants: cells of a sequence are those of positions 0 … n-1 in order; a cell's `refs` is the number of sequences
 * that hold it, and it is on the free stack exactly when that is 0; attn[0] and rec[0] are the origin; `complete`
 * implies that rec[n] is valid, and for a class without pages a sequence is always complete. */
#include "engine/sim_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- blobs ---- */

enum { PAGE_MAGIC = 0x47505348, SNAPSHOT_MAGIC = 0x4E535348, WINDOW_MAGIC = 0x4E575348 };

/* A page: head, one record per position, padding to page_bytes_per_token × positions. A snapshot: head, padding. */
struct blob_head {
    uint32_t magic;
    int32_t p0, p1; /* positions of a page; of a snapshot, p1 is its position */
    uint32_t records;
    uint64_t seed;     /* of the engine that wrote it */
    sim_state state;   /* of a snapshot */
    uint64_t checksum; /* of everything behind the head */
};
struct page_record {
    sim_state before, after;
    int32_t pos;
    hearth_token token;
};
_Static_assert(sizeof(struct blob_head) + sizeof(struct page_record) <= HEARTH_SIM_BYTES_MIN,
               "a page of one token has room for its content");

static size_t page_bytes(const struct sim *sim, int64_t tokens) {
    return sim->params.page_bytes_per_token * (size_t)tokens;
}

/* Opaque state is a blob of the whole sequence. */
static size_t snapshot_bytes(const struct sim *sim, int32_t pos) {
    return sim->params.snapshot_bytes + (sim->params.memory_class == HEARTH_ENGINE_OPAQUE ? page_bytes(sim, pos) : 0);
}

/* Head, the states at p0 … p1, padding. */
size_t hearth_sim_window_bytes(const struct sim *sim, int32_t tokens) {
    size_t content = sizeof(struct blob_head) + ((size_t)tokens + 1) * sizeof(sim_state);
    size_t share = sim->params.snapshot_bytes * (size_t)tokens / sim->params.window_tokens;
    return content > share ? content : share;
}

/* Completes a blob behind `out`, for which there is room: padding, checksum, head. */
static int blob_seal(struct sim *sim, struct hearth_buf *out, size_t len, size_t used, struct blob_head *head,
                     _Atomic uint64_t *count) {
    uint8_t *blob = out->data + out->len;
    head->seed = sim->params.seed;
    memset(blob + used, 0xA5, len - used);
    head->checksum = hearth_checksum(blob + sizeof *head, len - sizeof *head);
    memcpy(blob, head, sizeof *head);
    out->len += len;
    ++*count;
    hearth_sim_spend_ns(sim, (double)len / sim->params.export_bytes_per_s * 1e9);
    return HEARTH_OK;
}

/* Reads a head. False: this is no such blob, as far as a real engine would notice. */
static bool blob_open(const void *blob, size_t len, uint32_t magic, struct blob_head *head) {
    if (len < sizeof *head) {
        return false;
    }
    memcpy(head, blob, sizeof *head);
    return head->magic == magic && head->p0 >= 0 && head->p0 <= head->p1;
}

/* 0 for content of this model without damage, else a value that poisons the digests made from it. */
static uint64_t blob_taint(const struct sim *sim, const void *blob, size_t len, const struct blob_head *head) {
    uint64_t checksum = hearth_checksum((const uint8_t *)blob + sizeof *head, len - sizeof *head);
    return (head->seed ^ sim->params.seed) | (head->checksum ^ checksum);
}

/* ---- cells ---- */

static bool has_pages(const struct sim *sim) {
    return hearth_caps_has_pages(&sim->base.caps);
}

static bool has_rec(const struct sim *sim) {
    return hearth_caps_needs_snapshot(&sim->base.caps);
}

uint32_t hearth_sim_state_cells(const struct sim *sim, uint32_t tokens) {
    return sim->params.memory_class == HEARTH_ENGINE_SNAPSHOT ? 0 : tokens;
}

static uint32_t cell_new(struct sim *sim, const struct sim_cell *content) {
    HEARTH_ASSERT(sim->free_count > 0);
    uint32_t at = sim->free_cells[--sim->free_count];
    HEARTH_ASSERT(sim->cells[at].refs == 0);
    sim->cells[at] = *content;
    sim->cells[at].refs = 1;
    return at;
}

/* What attention gives behind a cell, if it gave `attn` before position `pos`. */
static sim_state attention(sim_state attn, int32_t pos, const struct sim_cell *cell) {
    bool whole = cell->pos == pos && cell->before == attn && cell->after == hearth_sim_state_step(attn, cell->token);
    return whole ? cell->after : sim_poison(attn, cell->after);
}

/* Puts a cell behind a sequence; the sequence takes over one reference. */
static void seq_push(struct sim *sim, struct sim_seq *seq, uint32_t at) {
    HEARTH_ASSERT((uint32_t)seq->n < sim->params.ctx_tokens);
    seq->cells[seq->n] = at;
    seq->attn[seq->n + 1] = attention(seq->attn[seq->n], seq->n, &sim->cells[at]);
    seq->n++;
}

/* Drops positions [n, …). */
static void seq_truncate(struct sim *sim, struct sim_seq *seq, int32_t n) {
    HEARTH_ASSERT(n >= 0 && n <= seq->n);
    if (has_pages(sim)) {
        for (int32_t i = n; i < seq->n; i++) {
            struct sim_cell *cell = &sim->cells[seq->cells[i]];
            HEARTH_ASSERT(cell->refs > 0);
            if (--cell->refs == 0) {
                sim->free_cells[sim->free_count++] = seq->cells[i];
            }
        }
    } else {
        sim->free_count += hearth_sim_state_cells(sim, (uint32_t)(seq->n - n));
    }
    HEARTH_ASSERT(sim->free_count <= sim->params.ctx_tokens);
    seq->n = n;
}

/* The addressable state of a sequence has changed under its other state. */
static void seq_uncomplete(const struct sim *sim, struct sim_seq *seq) {
    seq->complete = !has_rec(sim) || seq->n == 0;
    seq->since = seq->high = seq->n;
}

static void seq_empty(struct sim *sim, struct sim_seq *seq) {
    seq_truncate(sim, seq, 0);
    seq->broken = false;
    seq_uncomplete(sim, seq);
}

/* What fails leaves the sequence empty. */
static int fail_empty(struct sim *sim, struct sim_seq *seq, int err) {
    seq_empty(sim, seq);
    return err;
}

struct sim_seq *hearth_sim_state_seq(struct sim *sim, int32_t seq) {
    HEARTH_ASSERT(seq >= 0 && (uint32_t)seq < sim->base.caps.seqs);
    return &sim->seqs[seq];
}

/* A sequence that may be used for more than clearing. */
static struct sim_seq *seq_usable(struct hearth_engine *engine, int32_t seq) {
    struct sim_seq *s = hearth_sim_state_seq(hearth_sim_of(engine), seq);
    HEARTH_ASSERT(!s->broken);
    return s;
}

int hearth_sim_state_init(struct sim *sim) {
    size_t cells = sim->params.ctx_tokens, entries = cells + 1;
    sim->cells = calloc(cells, sizeof sim->cells[0]);
    sim->free_cells = calloc(cells, sizeof sim->free_cells[0]);
    sim->seqs = calloc(sim->base.caps.seqs, sizeof sim->seqs[0]);
    if (sim->cells == NULL || sim->free_cells == NULL || sim->seqs == NULL) {
        return HEARTH_ERR_NOMEM;
    }
    for (size_t i = 0; i < cells; i++) {
        sim->free_cells[i] = (uint32_t)(cells - 1 - i);
    }
    sim->free_count = (uint32_t)cells;
    for (uint32_t i = 0; i < sim->base.caps.seqs; i++) {
        struct sim_seq *seq = &sim->seqs[i];
        seq->cells = calloc(entries, sizeof seq->cells[0]);
        seq->attn = calloc(entries, sizeof seq->attn[0]);
        seq->rec = calloc(entries, sizeof seq->rec[0]);
        if (seq->cells == NULL || seq->attn == NULL || seq->rec == NULL) {
            return HEARTH_ERR_NOMEM;
        }
        seq->attn[0] = seq->rec[0] = sim->origin;
        seq->complete = true;
    }
    return HEARTH_OK;
}

void hearth_sim_state_finish(struct sim *sim) {
    for (uint32_t i = 0; sim->seqs != NULL && i < sim->base.caps.seqs; i++) {
        free(sim->seqs[i].cells);
        free(sim->seqs[i].attn);
        free(sim->seqs[i].rec);
    }
    free(sim->seqs);
    free(sim->free_cells);
    free(sim->cells);
}

/* ---- computing ---- */

sim_state hearth_sim_state_step(sim_state state, hearth_token token) {
    uint64_t unfinished = hearth_sim_text_is_lead(token) ? SIM_STATE_UNFINISHED : 0;
    if ((state & SIM_STATE_REPEATS) != 0) {
        uint64_t all = sim_mix(state, (uint64_t)token + 1) >> 32;
        uint64_t last = sim_mix((uint64_t)token, 3) & SIM_REPEATS_LAST;
        return all << 32 | last << 8 | SIM_STATE_REPEATS | unfinished;
    }
    return (sim_mix(state, (uint64_t)token + 1) & ~(uint64_t)SIM_STATE_LOW) | unfinished;
}

/* The state that the next token is computed from; the sequence is complete. */
static sim_state state_now(const struct sim *sim, const struct sim_seq *seq) {
    if (!has_rec(sim)) {
        return seq->attn[seq->n];
    }
    HEARTH_ASSERT(seq->complete);
    sim_state rec = seq->rec[seq->n];
    if (!has_pages(sim)) {
        return rec;
    }
    sim_state attn = seq->attn[seq->n];
    return attn == rec ? rec : sim_poison(attn, rec);
}

sim_state hearth_sim_state_extend(struct sim *sim, struct sim_seq *seq, hearth_token token) {
    HEARTH_ASSERT(!seq->broken && seq->complete);
    sim_state before = state_now(sim, seq);
    sim_state after = hearth_sim_state_step(before, token);
    if (has_pages(sim)) {
        seq_push(sim, seq,
                 cell_new(sim, &(struct sim_cell){.before = before, .after = after, .pos = seq->n, .token = token}));
    } else {
        HEARTH_ASSERT((uint32_t)seq->n < sim->params.ctx_tokens);
        sim->free_count -= hearth_sim_state_cells(sim, 1);
        seq->n++;
    }
    seq->rec[seq->n] = after;
    seq->high = seq->n > seq->high ? seq->n : seq->high;
    return after;
}

/* ---- sequences ---- */

void hearth_sim_seq_clear(struct hearth_engine *engine, int32_t seq) {
    struct sim *sim = hearth_sim_of(engine);
    seq_empty(sim, hearth_sim_state_seq(sim, seq));
}

int32_t hearth_sim_seq_rewind_floor(struct hearth_engine *engine, int32_t seq, int32_t end) {
    const struct sim *sim = hearth_sim_of(engine);
    const struct sim_seq *s = seq_usable(engine, seq);
    HEARTH_ASSERT(end == s->n);
    if (!has_rec(sim)) {
        return 0;
    }
    HEARTH_ASSERT(s->complete);
    if (!has_pages(sim)) {
        return end;
    }
    /* A window drops cells as the sequence grows, and does not get them back when it shrinks. */
    int64_t floor = (int64_t)s->high - sim->params.rewind_tokens;
    floor = floor > s->since ? floor : s->since;
    return (int32_t)floor;
}

int hearth_sim_seq_rewind(struct hearth_engine *engine, int32_t seq, int32_t n) {
    struct sim *sim = hearth_sim_of(engine);
    struct sim_seq *s = seq_usable(engine, seq);
    HEARTH_ASSERT(n <= s->n && n >= hearth_sim_seq_rewind_floor(engine, seq, s->n));
    if (hearth_sim_fails(sim, HEARTH_SIM_FAULT_SEQ_REWIND)) {
        return fail_empty(sim, s, HEARTH_ERR_STATE);
    }
    seq_truncate(sim, s, n);
    return HEARTH_OK;
}

int hearth_sim_seq_keep(struct hearth_engine *engine, int32_t seq, int32_t n) {
    struct sim *sim = hearth_sim_of(engine);
    struct sim_seq *s = seq_usable(engine, seq);
    HEARTH_ASSERT(n >= 0 && n <= s->n);
    seq_truncate(sim, s, has_pages(sim) ? n : 0);
    seq_uncomplete(sim, s);
    return HEARTH_OK;
}

int hearth_sim_seq_share(struct hearth_engine *engine, int32_t src, int32_t dst, int32_t p0, int32_t p1) {
    struct sim *sim = hearth_sim_of(engine);
    const struct sim_seq *from = seq_usable(engine, src);
    struct sim_seq *to = seq_usable(engine, dst);
    HEARTH_ASSERT(has_pages(sim) && from != to);
    HEARTH_ASSERT(to->n == p0 && p0 <= p1 && p1 <= from->n);
    for (int32_t i = p0; i < p1; i++) {
        sim->cells[from->cells[i]].refs++;
        seq_push(sim, to, from->cells[i]);
    }
    sim->counted.shared_tokens += (uint64_t)(p1 - p0);
    seq_uncomplete(sim, to);
    return HEARTH_OK;
}

bool hearth_sim_intact(struct hearth_engine *engine, int32_t seq, const hearth_token *tokens, size_t n) {
    const struct sim *sim = hearth_sim_of(engine);
    const struct sim_seq *s = hearth_sim_state_seq(hearth_sim_of(engine), seq);
    if (s->broken || !s->complete || (size_t)s->n != n) {
        return false;
    }
    sim_state state = sim->origin;
    for (size_t i = 0; i < n; i++) {
        state = hearth_sim_state_step(state, tokens[i]);
    }
    return state_now(sim, s) == state;
}

static int imported(struct sim *sim, size_t len, _Atomic uint64_t *count) {
    ++*count;
    hearth_sim_spend_ns(sim, (double)len / sim->params.import_bytes_per_s * 1e9);
    return HEARTH_OK;
}

/* ---- pages ---- */

int hearth_sim_page_export(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, struct hearth_buf *out) {
    struct sim *sim = hearth_sim_of(engine);
    const struct sim_seq *s = seq_usable(engine, seq);
    HEARTH_ASSERT(has_pages(sim) && 0 <= p0 && p0 < p1 && p1 <= s->n);
    if (hearth_sim_fails(sim, HEARTH_SIM_FAULT_PAGE_EXPORT)) {
        return HEARTH_ERR_STATE;
    }
    size_t len = page_bytes(sim, p1 - p0);
    if (!hearth_buf_reserve(out, len)) {
        return HEARTH_ERR_NOMEM;
    }
    uint8_t *blob = out->data + out->len;
    struct blob_head head = {.magic = PAGE_MAGIC, .p0 = p0, .p1 = p1, .records = (uint32_t)(p1 - p0)};
    size_t used = sizeof head;
    for (int32_t i = p0; i < p1; i++) {
        const struct sim_cell *cell = &sim->cells[s->cells[i]];
        struct page_record record = {
            .before = cell->before, .after = cell->after, .pos = cell->pos, .token = cell->token};
        memcpy(blob + used, &record, sizeof record);
        used += sizeof record;
    }
    return blob_seal(sim, out, len, used, &head, &sim->counted.page_exports);
}

/* Puts the records of positions [p0, p1) behind a sequence. A position that the blob has no record of is a hole. */
static void page_attach(struct sim *sim, struct sim_seq *seq, int32_t p0, int32_t p1, const void *blob,
                        const struct blob_head *head, uint64_t taint) {
    for (int32_t pos = p0; pos < p1; pos++) {
        struct page_record record = {.pos = -1};
        if (pos >= head->p0 && pos < head->p1) {
            size_t at = sizeof *head + (size_t)(pos - head->p0) * sizeof record;
            memcpy(&record, (const uint8_t *)blob + at, sizeof record);
        }
        struct sim_cell cell = {
            .before = record.before, .after = record.after, .pos = record.pos, .token = record.token};
        if (taint != 0) {
            cell.before = sim_poison(cell.before, taint);
        }
        seq_push(sim, seq, cell_new(sim, &cell));
    }
}

int hearth_sim_page_import(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, const void *blob,
                           size_t len, int32_t page_p0, int32_t page_p1) {
    struct sim *sim = hearth_sim_of(engine);
    struct sim_seq *s = seq_usable(engine, seq);
    HEARTH_ASSERT(has_pages(sim) && s->n == p0);
    HEARTH_ASSERT(0 <= page_p0 && page_p0 <= p0 && p0 < p1 && p1 <= page_p1);
    HEARTH_ASSERT((uint32_t)p1 <= sim->params.ctx_tokens);
    struct blob_head head;
    if (hearth_sim_fails(sim, HEARTH_SIM_FAULT_PAGE_IMPORT) || !blob_open(blob, len, PAGE_MAGIC, &head) ||
        len != page_bytes(sim, head.p1 - head.p0) || head.records != (uint32_t)(head.p1 - head.p0)) {
        return fail_empty(sim, s, HEARTH_ERR_STATE);
    }
    if (sim->free_count < (uint32_t)(page_p1 - page_p0)) {
        return fail_empty(sim, s, HEARTH_ERR_NO_CELLS);
    }
    page_attach(sim, s, p0, p1, blob, &head, blob_taint(sim, blob, len, &head));
    seq_uncomplete(sim, s);
    return imported(sim, len, &sim->counted.page_imports);
}

/* ---- snapshots ---- */

int hearth_sim_snapshot_export(struct hearth_engine *engine, int32_t seq, int32_t pos, struct hearth_buf *out) {
    struct sim *sim = hearth_sim_of(engine);
    const struct sim_seq *s = seq_usable(engine, seq);
    HEARTH_ASSERT(has_rec(sim) && s->complete && s->n == pos);
    if (sim->params.window_tokens > 0) {
        int32_t p0 = pos - engine->caps.window_tokens;
        return hearth_sim_window_export(engine, seq, p0 > 0 ? p0 : 0, pos, out);
    }
    if (hearth_sim_fails(sim, HEARTH_SIM_FAULT_SNAPSHOT_EXPORT)) {
        return HEARTH_ERR_STATE;
    }
    size_t len = snapshot_bytes(sim, pos);
    if (!hearth_buf_reserve(out, len)) {
        return HEARTH_ERR_NOMEM;
    }
    struct blob_head head = {.magic = SNAPSHOT_MAGIC, .p0 = 0, .p1 = pos, .state = s->rec[pos]};
    return blob_seal(sim, out, len, sizeof head, &head, &sim->counted.snapshot_exports);
}

int hearth_sim_snapshot_import(struct hearth_engine *engine, int32_t seq, int32_t pos, const void *blob, size_t len) {
    struct sim *sim = hearth_sim_of(engine);
    struct sim_seq *s = seq_usable(engine, seq);
    HEARTH_ASSERT(has_rec(sim) && pos > 0 && (uint32_t)pos <= sim->params.ctx_tokens);
    /* With pages, a snapshot completes them; without, it replaces whatever the sequence held. */
    HEARTH_ASSERT(!has_pages(sim) || s->n == pos);
    if (sim->params.window_tokens > 0) {
        int32_t p0 = pos - engine->caps.window_tokens;
        return hearth_sim_window_import(engine, seq, p0 > 0 ? p0 : 0, pos, blob, len, true);
    }
    struct blob_head head;
    if (!has_pages(sim)) {
        seq_empty(sim, s);
    }
    if (hearth_sim_fails(sim, HEARTH_SIM_FAULT_SNAPSHOT_IMPORT) || !blob_open(blob, len, SNAPSHOT_MAGIC, &head) ||
        len != snapshot_bytes(sim, head.p1)) {
        return fail_empty(sim, s, HEARTH_ERR_STATE);
    }
    if (!has_pages(sim)) {
        if (sim->free_count < hearth_sim_state_cells(sim, (uint32_t)pos)) {
            return fail_empty(sim, s, HEARTH_ERR_NO_CELLS);
        }
        sim->free_count -= hearth_sim_state_cells(sim, (uint32_t)pos);
        s->n = pos;
    }
    uint64_t taint = blob_taint(sim, blob, len, &head) | (uint64_t)(head.p1 ^ pos);
    s->rec[pos] = taint == 0 ? head.state : sim_poison(head.state, taint);
    s->complete = true;
    s->since = s->high = pos;
    return imported(sim, len, &sim->counted.snapshot_imports);
}

/* ---- windows ---- */

int hearth_sim_window_export(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1,
                             struct hearth_buf *out) {
    struct sim *sim = hearth_sim_of(engine);
    const struct sim_seq *s = seq_usable(engine, seq);
    HEARTH_ASSERT(s->complete && 0 <= p0 && p0 < p1 && p1 <= s->n && p1 - p0 <= engine->caps.window_tokens + 1);
    const int32_t floor = hearth_sim_seq_rewind_floor(engine, seq, s->n);
    if (p0 < floor - engine->caps.window_tokens || hearth_sim_fails(sim, HEARTH_SIM_FAULT_SNAPSHOT_EXPORT)) {
        return HEARTH_ERR_STATE;
    }
    size_t len = hearth_sim_window_bytes(sim, p1 - p0), states = ((size_t)(p1 - p0) + 1) * sizeof s->rec[0];
    if (!hearth_buf_reserve(out, len)) {
        return HEARTH_ERR_NOMEM;
    }
    struct blob_head head = {.magic = WINDOW_MAGIC, .p0 = p0, .p1 = p1, .records = (uint32_t)(p1 - p0) + 1};
    memcpy(out->data + out->len + sizeof head, s->rec + p0, states);
    return blob_seal(sim, out, len, sizeof head + states, &head, &sim->counted.snapshot_exports);
}

/* Takes the states at p0 … p1 of a piece, as far as it has them. */
static void window_attach(struct sim_seq *seq, int32_t p0, int32_t p1, const void *blob, const struct blob_head *head) {
    for (int32_t pos = p0; pos <= p1; pos++) {
        sim_state state = 0;
        if (pos < head->p0 || pos > head->p1) {
            seq->window_taint |= 1;
            continue;
        }
        memcpy(&state, (const uint8_t *)blob + sizeof *head + (size_t)(pos - head->p0) * sizeof state, sizeof state);
        if (pos == p0 && p0 > seq->window_p0) {
            seq->window_taint |= state ^ seq->rec[p0]; /* of another sequence */
        }
        seq->rec[pos] = state;
    }
}

int hearth_sim_window_import(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, const void *blob,
                             size_t len, bool first) {
    struct sim *sim = hearth_sim_of(engine);
    struct sim_seq *s = seq_usable(engine, seq);
    const int32_t window = engine->caps.window_tokens;
    HEARTH_ASSERT(window > 0 && 0 <= p0 && p0 < p1 && p1 <= s->n && (first || p0 == s->window_p1));
    struct blob_head head;
    if (hearth_sim_fails(sim, HEARTH_SIM_FAULT_SNAPSHOT_IMPORT) || !blob_open(blob, len, WINDOW_MAGIC, &head) ||
        head.records != (uint32_t)(head.p1 - head.p0) + 1 || len != hearth_sim_window_bytes(sim, head.p1 - head.p0)) {
        return fail_empty(sim, s, HEARTH_ERR_STATE);
    }
    HEARTH_ASSERT(p1 == s->n || p1 == head.p1); /* only the last one may be cut */
    if (first) {
        s->window_p0 = p0;
        s->window_taint = 0;
        s->complete = false;
    }
    s->window_taint |= blob_taint(sim, blob, len, &head);
    window_attach(s, p0, p1, blob, &head);
    s->window_p1 = p1;
    if (p1 == s->n) {
        const bool whole = s->window_p0 == 0 || p1 - s->window_p0 >= window;
        const uint64_t taint = s->window_taint | (whole ? 0 : 2);
        s->rec[p1] = taint == 0 ? s->rec[p1] : sim_poison(s->rec[p1], taint);
        s->complete = true;
        s->since = s->window_p0 == 0 ? 0 : s->window_p0 + window < p1 ? s->window_p0 + window : p1;
        s->high = p1;
    }
    return imported(sim, len, &sim->counted.snapshot_imports);
}
