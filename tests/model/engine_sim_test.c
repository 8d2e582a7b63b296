/* The sim engine against a naive reference.
 *
 * The reference keeps, per sequence, the list of its tokens and the list of its cells' names; every operation of the
 * engine is applied to both, at random, on all four memory classes. After each step every complete sequence must hold
 * exactly the reference's tokens, the next token must be the oracle's, the engine must use as many cells as there are
 * different names, and a fault must leave what sim.h promises.
 *
 * HEARTH_SEED repeats a run, HEARTH_MODEL_OPS sets its length. */
#include "engine/sim.h"

#include "base/assert.h"
#include "support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { SEQS = 4, CTX = 96, BATCH = 24, STORED = 24, ALPHABET = 4 };

/* A blob, and the tokens it was made from. */
struct stored {
    bool is_page;
    int32_t p0, p1; /* a snapshot's position is p1 */
    hearth_token tokens[CTX];
    struct hearth_buf blob;
};

struct ref_seq {
    int32_t n, since, high;
    bool complete;
    hearth_token tokens[CTX];
    uint64_t cells[CTX]; /* names */
};

struct model {
    struct rng rng;
    struct hearth_sim_params params;
    struct hearth_engine *engine;
    struct hearth_sampler *greedy;
    struct ref_seq seqs[SEQS];
    struct stored stored[STORED];
    uint64_t cell_names;
    uint64_t refused, faults, imports; /* so that a test that does nothing is noticed */
};

static bool has_pages(const struct model *m) {
    return hearth_caps_has_pages(&m->engine->caps);
}

static bool has_rec(const struct model *m) {
    return hearth_caps_needs_snapshot(&m->engine->caps);
}

/* ---- reference ---- */

/* Cells in use: different names, or for opaque state as many as tokens. */
static uint32_t ref_cells(const struct model *m) {
    uint64_t seen[SEQS * CTX];
    uint32_t count = 0;
    for (int s = 0; s < SEQS; s++) {
        for (int32_t i = 0; i < m->seqs[s].n; i++) {
            bool known = false;
            for (uint32_t k = 0; k < count && !known; k++) {
                known = seen[k] == m->seqs[s].cells[i];
            }
            if (!known) {
                seen[count++] = m->seqs[s].cells[i];
            }
        }
    }
    return m->params.memory_class == HEARTH_ENGINE_SNAPSHOT ? 0 : count;
}

static void ref_cut(const struct model *m, struct ref_seq *seq, int32_t n) {
    seq->n = n;
    seq->complete = n == 0 || !has_rec(m);
    seq->since = seq->high = n;
}

static void ref_push(struct model *m, struct ref_seq *seq, hearth_token token, uint64_t cell) {
    seq->tokens[seq->n] = token;
    seq->cells[seq->n++] = cell != 0 ? cell : ++m->cell_names;
}

static int32_t ref_floor(const struct model *m, const struct ref_seq *seq) {
    if (!has_rec(m)) {
        return 0;
    }
    if (!has_pages(m)) {
        return seq->n;
    }
    int32_t floor = seq->high - (int32_t)m->params.rewind_tokens;
    return floor > seq->since ? floor : seq->since;
}

/* ---- operations: each chooses what is allowed, or does nothing ---- */

static void check_output(struct model *m, size_t index, const struct ref_seq *seq) {
    hearth_token got = m->engine->ops->sample(m->engine, m->greedy, index, 0, NULL);
    assert_int_equal(got, hearth_sim_oracle(m->engine, seq->tokens, (size_t)seq->n));
}

static void op_decode(struct model *m) {
    struct hearth_batch_item items[BATCH];
    struct ref_seq after[SEQS];
    uint32_t want = 1 + rng_below(&m->rng, BATCH), outputs = 0;
    size_t n = 0, output_at[SEQS];
    int output_seq[SEQS];
    bool touched[SEQS] = {false};
    bool too_long = false;
    memcpy(after, m->seqs, sizeof after);
    for (uint32_t i = 0; i < want; i++) {
        int s = (int)rng_below(&m->rng, SEQS);
        struct ref_seq *seq = &after[s];
        if (!seq->complete || (seq->n == CTX && too_long)) {
            continue;
        }
        hearth_token token = (hearth_token)rng_below(&m->rng, ALPHABET);
        items[n] = (struct hearth_batch_item){.token = token, .seq = s, .pos = seq->n};
        touched[s] = true;
        if (seq->n == CTX) {
            too_long = true; /* must be refused, with nothing kept */
            n++;
            continue;
        }
        ref_push(m, seq, token, 0);
        seq->high = seq->n > seq->high ? seq->n : seq->high;
        if (!too_long && outputs < SEQS && rng_once_in(&m->rng, 3)) {
            output_at[outputs] = n;
            output_seq[outputs++] = s;
            items[n].output = true;
        }
        n++;
    }
    if (n == 0) {
        return;
    }
    bool fits = !too_long &&
                (!has_pages(m) && m->params.memory_class == HEARTH_ENGINE_SNAPSHOT ? true : ref_cells(m) + n <= CTX);
    int fault = rng_once_in(&m->rng, 40) ? 1 + (int)rng_below(&m->rng, 2) : 0;
    hearth_sim_fault(m->engine, HEARTH_SIM_FAULT_DECODE_NO_CELLS, fault == 1, false);
    hearth_sim_fault(m->engine, HEARTH_SIM_FAULT_DECODE, fault == 2, false);
    int err = m->engine->ops->decode(m->engine, items, n);
    hearth_sim_fault(m->engine, HEARTH_SIM_FAULT_DECODE, 0, false);
    if (!fits || fault == 1) {
        assert_int_equal(err, HEARTH_ERR_NO_CELLS);
        m->refused++;
    } else if (fault == 2) {
        assert_int_equal(err, HEARTH_ERR_ENGINE);
        m->faults++;
        for (int s = 0; s < SEQS; s++) {
            if (touched[s]) {
                assert_false(hearth_sim_intact(m->engine, s, m->seqs[s].tokens, (size_t)m->seqs[s].n));
                m->engine->ops->seq_clear(m->engine, s);
                ref_cut(m, &m->seqs[s], 0);
            }
        }
    } else {
        assert_int_equal(err, HEARTH_OK);
        memcpy(m->seqs, after, sizeof after);
        for (uint32_t i = 0; i < outputs; i++) {
            struct ref_seq *seq = &m->seqs[output_seq[i]];
            int32_t end = seq->n;
            seq->n = items[output_at[i]].pos + 1; /* the output belongs to this position */
            check_output(m, output_at[i], seq);
            seq->n = end;
        }
    }
}

static void op_clear(struct model *m, int s) {
    m->engine->ops->seq_clear(m->engine, s);
    ref_cut(m, &m->seqs[s], 0);
}

static void op_rewind(struct model *m, int s) {
    struct ref_seq *seq = &m->seqs[s];
    if (!seq->complete) {
        return;
    }
    int32_t floor = m->engine->ops->seq_rewind_floor(m->engine, s, seq->n);
    assert_int_equal(floor, ref_floor(m, seq));
    bool fault = rng_once_in(&m->rng, 20);
    hearth_sim_fault(m->engine, HEARTH_SIM_FAULT_SEQ_REWIND, fault, false);
    int32_t n = rng_range(&m->rng, floor, seq->n);
    int err = m->engine->ops->seq_rewind(m->engine, s, n);
    assert_int_equal(err, fault ? HEARTH_ERR_STATE : HEARTH_OK);
    if (fault) {
        m->faults++;
        ref_cut(m, seq, 0);
    } else {
        seq->n = n;
    }
}

static void op_keep(struct model *m, int s) {
    struct ref_seq *seq = &m->seqs[s];
    int32_t n = rng_range(&m->rng, 0, seq->n);
    assert_int_equal(m->engine->ops->seq_keep(m->engine, s, n), HEARTH_OK);
    ref_cut(m, seq, has_pages(m) ? n : 0);
}

static void op_share(struct model *m, int s) {
    int src = (int)rng_below(&m->rng, SEQS);
    struct ref_seq *to = &m->seqs[s], *from = &m->seqs[src];
    /* What is behind each other in one sequence must belong together: only a common prefix can be continued. */
    if (!has_pages(m) || src == s || from->n < to->n ||
        (to->n > 0 && memcmp(from->tokens, to->tokens, (size_t)to->n * sizeof to->tokens[0]) != 0)) {
        return;
    }
    int32_t p0 = to->n, p1 = rng_range(&m->rng, to->n, from->n);
    assert_int_equal(m->engine->ops->seq_share(m->engine, src, s, p0, p1), HEARTH_OK);
    for (int32_t i = p0; i < p1; i++) {
        ref_push(m, to, from->tokens[i], from->cells[i]);
    }
    ref_cut(m, to, to->n);
}

static void op_export(struct model *m, int s) {
    struct ref_seq *seq = &m->seqs[s];
    struct stored *slot = &m->stored[rng_below(&m->rng, STORED)];
    bool page = has_pages(m) && (!has_rec(m) || rng_once_in(&m->rng, 2));
    if (seq->n == 0 || (!page && !seq->complete)) {
        return;
    }
    bool fault = rng_once_in(&m->rng, 20);
    hearth_sim_fault(m->engine, HEARTH_SIM_FAULT_PAGE_EXPORT, fault && page, false);
    hearth_sim_fault(m->engine, HEARTH_SIM_FAULT_SNAPSHOT_EXPORT, fault && !page, false);
    slot->blob.len = 0;
    slot->is_page = page;
    slot->p1 = page ? rng_range(&m->rng, 1, seq->n) : seq->n;
    slot->p0 = page ? rng_range(&m->rng, 0, slot->p1 - 1) : 0;
    memcpy(slot->tokens, seq->tokens, sizeof slot->tokens);
    int err = page ? m->engine->ops->page_export(m->engine, s, slot->p0, slot->p1, &slot->blob)
                   : m->engine->ops->snapshot_export(m->engine, s, slot->p1, &slot->blob);
    assert_int_equal(err, fault ? HEARTH_ERR_STATE : HEARTH_OK);
    size_t len = page ? m->params.page_bytes_per_token * (size_t)(slot->p1 - slot->p0) : m->params.snapshot_bytes;
    if (m->params.memory_class == HEARTH_ENGINE_OPAQUE) {
        len += m->params.page_bytes_per_token * (size_t)slot->p1;
    }
    assert_int_equal(slot->blob.len, fault ? 0 : len);
    m->faults += fault;
}

static void page_import(struct model *m, int s, const struct stored *slot) {
    struct ref_seq *seq = &m->seqs[s];
    if (seq->n < slot->p0 || seq->n >= slot->p1) {
        return;
    }
    int32_t p0 = seq->n, p1 = rng_range(&m->rng, p0 + 1, slot->p1);
    bool fits = ref_cells(m) + (uint32_t)(slot->p1 - slot->p0) <= CTX;
    bool fault = rng_once_in(&m->rng, 20);
    hearth_sim_fault(m->engine, HEARTH_SIM_FAULT_PAGE_IMPORT, fault, false);
    int err = m->engine->ops->page_import(m->engine, s, p0, p1, slot->blob.data, slot->blob.len, slot->p0, slot->p1);
    assert_int_equal(err, fault ? HEARTH_ERR_STATE : fits ? HEARTH_OK : HEARTH_ERR_NO_CELLS);
    m->faults += fault;
    m->refused += !fault && !fits;
    m->imports += err == HEARTH_OK;
    if (err != HEARTH_OK) {
        ref_cut(m, seq, 0);
        return;
    }
    for (int32_t i = p0; i < p1; i++) {
        ref_push(m, seq, slot->tokens[i], 0);
    }
    ref_cut(m, seq, p1);
}

static void snapshot_import(struct model *m, int s, const struct stored *slot) {
    struct ref_seq *seq = &m->seqs[s];
    if (has_pages(m) && seq->n != slot->p1) {
        return;
    }
    if (!has_pages(m)) {
        ref_cut(m, seq, 0); /* it is replaced */
    }
    bool fits = m->params.memory_class != HEARTH_ENGINE_OPAQUE || ref_cells(m) + (uint32_t)slot->p1 <= CTX;
    bool fault = rng_once_in(&m->rng, 20);
    hearth_sim_fault(m->engine, HEARTH_SIM_FAULT_SNAPSHOT_IMPORT, fault, false);
    int err = m->engine->ops->snapshot_import(m->engine, s, slot->p1, slot->blob.data, slot->blob.len);
    assert_int_equal(err, fault ? HEARTH_ERR_STATE : fits ? HEARTH_OK : HEARTH_ERR_NO_CELLS);
    m->faults += fault;
    m->refused += !fault && !fits;
    m->imports += err == HEARTH_OK;
    if (err != HEARTH_OK) {
        ref_cut(m, seq, 0);
        return;
    }
    while (seq->n < slot->p1) {
        ref_push(m, seq, slot->tokens[seq->n], 0);
    }
    ref_cut(m, seq, slot->p1);
    seq->complete = true;
}

/* Imports a blob that continues (or completes) a sequence of the same tokens. */
static void op_import(struct model *m, int s) {
    struct ref_seq *seq = &m->seqs[s];
    const struct stored *slot = &m->stored[rng_below(&m->rng, STORED)];
    size_t same = (size_t)(seq->n < slot->p1 ? seq->n : slot->p1);
    if (slot->blob.len == 0 || (has_pages(m) && memcmp(seq->tokens, slot->tokens, same * sizeof seq->tokens[0]) != 0)) {
        return;
    }
    if (slot->is_page) {
        page_import(m, s, slot);
    } else {
        snapshot_import(m, s, slot);
    }
}

/* ---- the run ---- */

static void check(struct model *m) {
    struct hearth_sim_stats stats;
    hearth_sim_stats(m->engine, &stats);
    assert_int_equal(stats.cells_used, ref_cells(m));
    for (int s = 0; s < SEQS; s++) {
        const struct ref_seq *seq = &m->seqs[s];
        assert_int_equal(hearth_sim_intact(m->engine, s, seq->tokens, (size_t)seq->n), seq->complete);
    }
}

static void step(struct model *m) {
    int s = (int)rng_below(&m->rng, SEQS);
    switch (rng_below(&m->rng, 12)) {
    case 0: op_clear(m, s); break;
    case 1: op_rewind(m, s); break;
    case 2: op_keep(m, s); break;
    case 3:
    case 4: op_share(m, s); break;
    case 5:
    case 6: op_export(m, s); break;
    case 7:
    case 8:
    case 9: op_import(m, s); break;
    default: op_decode(m); break;
    }
    check(m);
}

static void run(enum hearth_engine_class memory_class, uint32_t rewind_tokens, uint64_t ops, uint64_t seed) {
    struct model m = {.rng = {seed + (uint64_t)memory_class * 7 + rewind_tokens}};
    hearth_sim_params_default(&m.params);
    m.params.memory_class = memory_class;
    m.params.ctx_tokens = CTX;
    m.params.lanes = SEQS;
    m.params.batch_tokens = BATCH;
    m.params.ubatch_tokens = BATCH;
    m.params.rewind_tokens = rewind_tokens;
    m.params.snapshot_bytes = 80;
    m.params.seed = seed;
    assert_int_equal(hearth_sim_create(&m.params, &m.engine, NULL), HEARTH_OK);
    struct hearth_sampling sampling;
    hearth_sampling_default(&sampling);
    sampling.temperature = 0.0f;
    m.greedy = m.engine->ops->sampler_create(m.engine, &sampling, NULL);
    assert_non_null(m.greedy);
    for (int s = 0; s < SEQS; s++) {
        m.seqs[s].complete = true;
    }
    for (uint64_t i = 0; i < ops; i++) {
        step(&m);
    }
    assert_true(m.faults > 0 && m.imports > ops / 200);
    assert_true(memory_class == HEARTH_ENGINE_SNAPSHOT || m.refused > 0);
    for (int i = 0; i < STORED; i++) {
        hearth_buf_finish(&m.stored[i].blob);
    }
    m.engine->ops->sampler_destroy(m.engine, m.greedy);
    m.engine->ops->destroy(m.engine);
}

static uint64_t seed, ops;

static void pages(void **state) {
    (void)state;
    run(HEARTH_ENGINE_PAGES, 0, ops, seed);
}

static void pages_and_snapshot(void **state) {
    (void)state;
    run(HEARTH_ENGINE_PAGES_SNAPSHOT, 0, ops, seed);
    run(HEARTH_ENGINE_PAGES_SNAPSHOT, 7, ops, seed);
}

static void snapshot(void **state) {
    (void)state;
    run(HEARTH_ENGINE_SNAPSHOT, 0, ops, seed);
}

static void opaque(void **state) {
    (void)state;
    run(HEARTH_ENGINE_OPAQUE, 0, ops, seed);
}

int main(void) {
    seed = seed_announced(1);
    ops = env_number("HEARTH_MODEL_OPS", 100000);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages),
        cmocka_unit_test(pages_and_snapshot),
        cmocka_unit_test(snapshot),
        cmocka_unit_test(opaque),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
