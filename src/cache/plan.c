/* The plan, by the rules in plan.h: measure every live sequence against the prompt; list the options; take the
 * cheapest; choose the sequence to run on; explain.
 *
 * Invariants: an option never names state that does not cover [0, resume); a sequence with uncaptured or still useful
 * state is a target only when it is continued or none is empty. */
#include "cache/planner.h"

#include "base/assert.h"

#define MUCH_MORE_TIMES 8

struct resume_option {
    enum hearth_resume how;
    int source;
    int32_t resume;
    int32_t live_tokens;
    const struct hearth_live_snapshot *pending;
    double cost_us;
};

struct planner {
    const struct hearth_plan_input *in;
    int32_t limit;   /* latest position to resume at */
    int best_source; /* live sequence with the longest common prefix, or -1 */
    int32_t best_common;
    struct resume_option best;
    bool any;
    int32_t reachable; /* latest position that any candidate offered, cheap or not */
};

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* ---- candidates ---- */

/* The cost of a page of the path, wherever its state is. */
static double page_us(const struct hearth_plan_input *in, const struct hearth_page *page) {
    if (page->item.blob || page->item.copy.state != HEARTH_COPY_THERE) {
        return hearth_costs_restore_us(in->costs, (size_t)page->len * in->caps->page_bytes_per_token, 1);
    }
    return hearth_costs_backing_us(in->costs, page->item.copy.remote,
                                   (size_t)(page->p0 + page->len - page->item.copy.p0) * in->caps->page_bytes_per_token,
                                   1);
}

static double snapshot_us(const struct hearth_plan_input *in, const struct hearth_snapshot *snapshot) {
    size_t bytes = hearth_snapshot_state_bytes(in->caps, snapshot);
    return snapshot->item.blob ? hearth_costs_restore_us(in->costs, bytes, 1)
                               : hearth_costs_backing_us(in->costs, snapshot->item.copy.remote, bytes, 1);
}

/* Takes the candidate if it is cheaper than the best so far; candidates come in order of preference. */
static void offer(struct planner *p, struct resume_option candidate, double restore_us) {
    if (candidate.resume <= 0 && candidate.how != HEARTH_RESUME_FRESH) {
        return;
    }
    candidate.cost_us = restore_us + hearth_costs_compute_us(p->in->costs, (int32_t)p->in->n - candidate.resume);
    if (candidate.resume > p->reachable) {
        p->reachable = candidate.resume;
    }
    if (!p->any || candidate.cost_us < p->best.cost_us) {
        p->best = candidate;
    }
    p->any = true;
}

/* Continue or rewind a free sequence where it stands. */
static void offer_in_place(struct planner *p, int live, int32_t common) {
    const struct hearth_live *l = p->in->lives[live];
    int32_t end = (int32_t)l->tokens.n;
    int32_t at = smaller(common, p->limit);
    if (l->busy || at < p->in->rewind_floors[live]) {
        return;
    }
    if (!p->in->caps->cache_ok && at != end) {
        return;
    }
    /* A rewind takes the end away from a prompt that comes back for it. On a class that cannot share state, restoring
     * that end later is part of the price. */
    double lost_us = at == end || !hearth_caps_needs_snapshot(p->in->caps)
                         ? 0
                         : hearth_costs_restore_us(p->in->costs, p->in->caps->snapshot_bytes, 2);
    offer(p, (struct resume_option){.how = HEARTH_RESUME_IN_PLACE, .source = live, .resume = at, .live_tokens = at},
          lost_us);
}

static void offer_live(struct planner *p, int live, int32_t common) {
    const struct hearth_caps *caps = p->in->caps;
    const struct hearth_live *l = p->in->lives[live];
    int32_t at = smaller(common, p->limit);
    if (!caps->cache_ok) {
        return;
    }
    if (!hearth_caps_needs_snapshot(caps)) {
        offer(p, (struct resume_option){.how = HEARTH_RESUME_SHARE, .source = live, .resume = at, .live_tokens = at},
              0);
        return;
    }
    bool addressable = hearth_caps_has_pages(caps);
    double snapshot_us = hearth_costs_restore_us(p->in->costs, caps->snapshot_bytes, 1);
    int32_t end = (int32_t)l->tokens.n;
    if (end == common && end <= p->limit) {
        offer(p,
              (struct resume_option){
                  .how = HEARTH_RESUME_LIVE_END, .source = live, .resume = end, .live_tokens = addressable ? end : 0},
              2 * snapshot_us);
    }
    for (int i = l->snapshot_count; i-- > 0;) {
        if (l->snapshots[i].pos > at) {
            continue;
        }
        offer(p,
              (struct resume_option){.how = HEARTH_RESUME_LIVE_SNAPSHOT,
                                     .source = live,
                                     .resume = l->snapshots[i].pos,
                                     .live_tokens = addressable ? l->snapshots[i].pos : 0,
                                     .pending = &l->snapshots[i]},
              snapshot_us);
        break;
    }
}

/* The cheapest place in the tree to resume at, not yet compared with the other ways. */
struct resume_place {
    int32_t resume; /* 0: none */
    double restore_us, cost_us;
};

static void consider(struct planner *p, struct resume_place *best, int32_t resume, double restore_us) {
    double cost_us = restore_us + hearth_costs_compute_us(p->in->costs, (int32_t)p->in->n - resume);
    if (resume > p->reachable) {
        p->reachable = resume;
    }
    if (best->resume == 0 || cost_us < best->cost_us) {
        *best = (struct resume_place){.resume = resume, .restore_us = restore_us, .cost_us = cost_us};
    }
}

/* Considers a place that needs snapshots; the pages up to there cost `pages_us`. */
static void consider_completed(struct planner *p, struct resume_place *best, int32_t resume, double pages_us) {
    const struct hearth_plan_input *in = p->in;
    struct hearth_snapshot *pieces[HEARTH_PIECES_MAX];
    size_t n = hearth_path_cover(in->path, resume, in->caps->window_tokens, in->page_tokens, pieces);
    double us = pages_us;
    for (size_t i = 0; i < n; i++) {
        us += snapshot_us(in, pieces[i]);
    }
    if (n > 0) {
        consider(p, best, resume, us);
    }
}

/* Offers pages (and a snapshot) from the tree, behind what a live sequence already has of them. Each page's end, or
 * each snapshot, is a place to resume at: behind a page that is slow to read, computing may be faster. Costs of pages
 * add up from the root on, so each page is looked at once. */
static void offer_stored(struct planner *p) {
    const struct hearth_plan_input *in = p->in;
    const struct hearth_caps *caps = in->caps;
    bool pages = hearth_caps_has_pages(caps), snapshots = hearth_caps_needs_snapshot(caps);
    int32_t limit = smaller(in->usable, p->limit);
    struct resume_place best = {.resume = 0};
    double us = 0;
    for (size_t i = 0; caps->cache_ok && i < in->path->n && in->path->pages[i]->p0 < limit; i++) {
        const struct hearth_page *page = in->path->pages[i];
        int32_t end = smaller(i + 1 < in->path->n ? in->path->pages[i + 1]->p0 : in->path->matched, limit);
        if (pages && end > p->best_common) {
            us += page_us(in, page);
        }
        if (!snapshots) {
            consider(p, &best, end, us);
        }
        for (uint32_t k = 0; snapshots && k < page->snapshot_count && page->snapshots[k]->pos <= end; k++) {
            consider_completed(p, &best, page->snapshots[k]->pos, us);
        }
        if (snapshots && caps->window_tokens > 0) {
            consider_completed(p, &best, end, us);
        }
    }
    int32_t live = pages ? smaller(p->best_common, best.resume) : 0;
    if (best.resume > 0) {
        offer(p,
              (struct resume_option){.how = HEARTH_RESUME_STORED,
                                     .source = live > 0 ? p->best_source : -1,
                                     .resume = best.resume,
                                     .live_tokens = live},
              best.restore_us);
    }
}

/* ---- target ---- */

/* Whether the request moves to another sequence instead of rewinding this one, which would drop the end of what may be
 * another conversation. Where state can be shared it moves to the sequence that would be chosen anyway, and the source
 * stays whole. It stays if that sequence has much more to lose, as when a request is sent again: RAM may be too full to
 * keep either. */
static bool moves(const struct hearth_plan_input *in, const struct hearth_live *source,
                  const struct hearth_live *target, int32_t resume) {
    size_t end_tokens = source->tokens.n - (size_t)resume;
    return end_tokens > 0 && !hearth_caps_needs_snapshot(in->caps) && in->caps->cache_ok &&
           (target->tokens.n == 0 || end_tokens > target->tokens.n / MUCH_MORE_TIMES);
}

static void choose_target(const struct planner *p, struct hearth_plan *plan) {
    const struct hearth_plan_input *in = p->in;
    if (plan->how != HEARTH_RESUME_IN_PLACE) {
        return;
    }
    if (plan->target != plan->source && moves(in, in->lives[plan->source], in->lives[plan->target], plan->resume)) {
        plan->how = HEARTH_RESUME_SHARE;
    } else {
        plan->target = plan->source;
    }
}

/* ---- reasons ---- */

/* Whether a snapshot behind the resume position existed and was evicted. */
static bool snapshot_went(const struct planner *p, const struct hearth_plan *plan) {
    const struct hearth_path *path = p->in->path;
    const int32_t end = smaller(plan->matched, p->limit);
    for (size_t i = 0; i < path->n; i++) {
        const struct hearth_ghosts *ghosts = path->pages[i]->ghosts;
        if (ghosts && ghosts->snapshot.pos > plan->resume && ghosts->snapshot.pos <= end) {
            return true;
        }
    }
    return false;
}

static enum hearth_reason explain(const struct planner *p, const struct hearth_plan *plan) {
    const struct hearth_plan_input *in = p->in;
    if (in->cache_off) {
        return HEARTH_REASON_CACHE_OFF;
    }
    if (plan->resume == p->limit) {
        return p->limit == 0 ? HEARTH_REASON_COLD : HEARTH_REASON_NONE;
    }
    if (plan->resume < p->reachable) {
        return HEARTH_REASON_COMPUTE_CHEAPER;
    }
    if (plan->resume < smaller(plan->matched, p->limit) && in->usable < smaller(in->path->matched, p->limit) &&
        plan->matched == in->path->matched) {
        return HEARTH_REASON_EVICTED;
    }
    if (plan->resume < smaller(plan->matched, p->limit)) {
        return !in->caps->cache_ok      ? HEARTH_REASON_CACHE_OFF
               : snapshot_went(p, plan) ? HEARTH_REASON_EVICTED
                                        : HEARTH_REASON_NO_SNAPSHOT;
    }
    bool live_knows_more = p->best_source >= 0 && p->best_common > in->path->matched;
    if (!live_knows_more && in->edge == HEARTH_EDGE_EVICTED) {
        return HEARTH_REASON_EVICTED;
    }
    if (plan->matched == 0) {
        return HEARTH_REASON_COLD;
    }
    bool live_ends = p->best_source >= 0 && p->best_common == plan->matched &&
                     (size_t)p->best_common == in->lives[p->best_source]->tokens.n;
    bool tree_ends = !live_knows_more && in->edge == HEARTH_EDGE_END;
    return live_ends || tree_ends ? HEARTH_REASON_EXTENDED : HEARTH_REASON_DIVERGED;
}

/* ---- entry ---- */

/* Chooses the cheapest candidate. */
static void choose(struct planner *p) {
    const struct hearth_plan_input *in = p->in;
    HEARTH_ASSERT(in->n > 0);
    p->limit = (int32_t)in->n - 1;
    p->best_source = -1;
    if (!in->cache_off) {
        for (size_t i = 0; i < in->live_count; i++) {
            if (in->commons[i] > p->best_common) {
                p->best_common = in->commons[i];
                p->best_source = (int)i;
            }
        }
        for (size_t i = 0; i < in->live_count; i++) {
            offer_in_place(p, (int)i, in->commons[i]);
        }
        for (size_t i = 0; i < in->live_count; i++) {
            offer_live(p, (int)i, in->commons[i]);
        }
        offer_stored(p);
    }
    offer(p, (struct resume_option){.how = HEARTH_RESUME_FRESH, .source = -1}, 0);
}

int32_t hearth_plan_resume(const struct hearth_plan_input *in) {
    struct planner p = {.in = in};
    choose(&p);
    return p.best.resume;
}

void hearth_plan_finish(struct hearth_plan *plan) {
    hearth_path_finish(&plan->path);
}

/* Fills the plan with what the best option takes, and from where. */
static void take_best(const struct planner *p, struct hearth_plan *plan) {
    plan->how = p->best.how;
    plan->source = p->best.source;
    plan->resume = p->best.resume;
    plan->live_tokens = p->best.live_tokens;
    if (plan->how == HEARTH_RESUME_STORED && hearth_caps_needs_snapshot(p->in->caps)) {
        plan->piece_count =
            hearth_path_cover(p->in->path, plan->resume, p->in->caps->window_tokens, p->in->page_tokens, plan->pieces);
    }
}

void hearth_plan_locate(const struct hearth_plan_input *in, struct hearth_plan *plan) {
    struct planner p = {.in = in};
    choose(&p);
    take_best(&p, plan);
}

bool hearth_plan_make(const struct hearth_plan_input *in, struct hearth_plan *plan) {
    struct planner p = {.in = in};
    *plan = (struct hearth_plan){.path = plan->path, .source = -1, .how = HEARTH_RESUME_FRESH};
    plan->target = hearth_live_victim(in->lives, in->live_count, in->now_us);
    if (plan->target < 0) {
        return false;
    }
    choose(&p);
    take_best(&p, plan);
    plan->pending = p.best.pending;
    plan->matched = p.best_common > in->path->matched ? p.best_common : in->path->matched;
    choose_target(&p, plan);
    plan->reason = explain(&p, plan);
    if (smaller(plan->matched, p.limit) > plan->resume) {
        plan->divergence = smaller(plan->matched, p.limit);
    }
    return true;
}
