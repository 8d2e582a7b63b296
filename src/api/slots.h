/* What the service is doing, and for which keys. On the loop's thread. */
#ifndef HEARTH_API_SLOTS_H
#define HEARTH_API_SLOTS_H

#include "api/stored_turns.h"

/* The job of a request of the service; NULL: it has ended. */
const struct hearth_job *hearth_slots_find(const struct hearth_api *api, int64_t service_id);
/* All lanes; the caller frees them. NULL: out of memory. */
struct hearth_lane_info *hearth_slots_lanes(struct hearth_api *api, size_t *count);
/* What each lane does, and what waits, as a caller may see it. NULL: out of memory. */
json_t *hearth_slots_summary(struct hearth_api *api, const struct hearth_caller *caller);
json_t *hearth_queue_json(struct hearth_api *api, const struct hearth_caller *caller);
/* native.c: what /health says of a tier, and of what does not work. NULL: out of memory. */
json_t *hearth_api_tier_json(struct hearth_backing *tier);
json_t *hearth_api_reasons_json(void);

#endif
