/* Where the time of the service's thread goes.
 *
 * Two clocks. What the engine does is told by its own clock, sim's virtual one in tests, so that traces repeat.
 * sample_us and sched_us are the service's own work, which no engine's clock knows of: they are always real time. Of a
 * turn of the loop sched_us is what is left when decoding, sampling, restoring and capturing are taken out; sleeping is
 * not in it. */
#include "base/clock.h"
#include "sched/service_internal.h"

void hearth_service_sampled(struct hearth_service *service, int64_t real_us) {
    int64_t us = hearth_clock_us() - real_us;
    service->counters.sample_us += (uint64_t)us;
    service->told_us += us;
}

void hearth_service_captured(struct hearth_service *service, int64_t start_us, int64_t real_us) {
    service->counters.capture_us += (uint64_t)(hearth_service_now_us(service) - start_us);
    service->told_us += hearth_clock_us() - real_us;
}

void hearth_service_worked(struct hearth_service *service, int64_t real_us) {
    int64_t us = hearth_clock_us() - real_us - service->told_us;
    service->counters.sched_us += us > 0 ? (uint64_t)us : 0;
    service->told_us = 0;
}
