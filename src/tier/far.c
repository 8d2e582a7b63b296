/* What every far tier has in common. */
#include "tier/far.h"

void hearth_far_event_finish(struct hearth_far_event *event) {
    hearth_record_destroy(event->record);
    hearth_buf_finish(&event->bytes);
    *event = (struct hearth_far_event){0};
}
