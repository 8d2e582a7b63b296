/* What every backing tier has in common. */
#include "tier/backing.h"

void hearth_backing_event_finish(struct hearth_backing_event *event) {
    hearth_record_destroy(event->record);
    hearth_buf_finish(&event->bytes);
    *event = (struct hearth_backing_event){0};
}
