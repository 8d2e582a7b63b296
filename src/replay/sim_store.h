/* A simulated store: the one that the boxes of a replay share, as a cost model behind the backing tiers' vtable.
 *
 * It answers what Redis answers (tier/remote.h): what hangs on a prompt's blocks in one round trip, reads and writes at
 * the bandwidth of the box's network and of the store's, which all boxes share. A page that is there is not sent again;
 * over its size the store evicts what was unused for longest. Nothing has bytes, and the clock of each box is the
 * caller's: waiting moves it.
 *
 * Likewise a disk of one box: it needs not be asked what it has, tells at once what it evicts, and counts each use. */
#ifndef HEARTH_REPLAY_SIM_STORE_H
#define HEARTH_REPLAY_SIM_STORE_H

#include "replay/wire.h"
#include "tier/backing.h"
#include "tier/share.h"

#define HEARTH_SIM_STORE_BOXES_MAX 128

struct hearth_sim_store_params {
    double store_bytes_per_s;   /* reads of all boxes together, and writes likewise */
    double write_bytes_per_s;   /* writes, where they are not as fast as reads; 0: they are */
    bool disk;                  /* of one box */
    double network_bytes_per_s; /* of a box, in each direction */
    int64_t latency_us;         /* a round trip */
    uint64_t bytes;             /* that the store may hold */
    double share;               /* of these, one owner may hold while others want room (tier/share.h); 0: any */
    uint64_t queue_bytes;       /* of a box, that may wait to be written */
    uint64_t known;             /* pages and snapshots that a box knows of while it does not ask; 0: any number */
};

struct hearth_sim_store_figures {
    uint64_t read_bytes, written_bytes;
    uint64_t deduplicated, dropped, evicted; /* pages and snapshots */
};

struct hearth_sim_store;

/* NULL: out of memory. */
struct hearth_sim_store *hearth_sim_store_create(const struct hearth_sim_store_params *params, uint32_t boxes);
/* The tiers of its boxes go with it: their caches must be gone. */
void hearth_sim_store_destroy(struct hearth_sim_store *store);

/* The tier of a box, whose clock is `*now_us`; the store's own. */
struct hearth_backing *hearth_sim_store_tier(struct hearth_sim_store *store, uint32_t box, int64_t *now_us);
/* The box is gone since `at_us`: what it had not written by then is not there. Its cache must be gone. */
void hearth_sim_store_lose_box(struct hearth_sim_store *store, uint32_t box, int64_t at_us);
/* The store is gone since `at_us`, with what it held, and answers nothing until hearth_sim_store_return(). */
void hearth_sim_store_lose(struct hearth_sim_store *store, int64_t at_us);
void hearth_sim_store_return(struct hearth_sim_store *store);

void hearth_sim_store_figures(const struct hearth_sim_store *store, struct hearth_sim_store_figures *figures);
/* The store's line for reads, or for writes. */
const struct hearth_wire *hearth_sim_store_wire(const struct hearth_sim_store *store, bool reads);

#endif
