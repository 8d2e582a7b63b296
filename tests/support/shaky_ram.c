/* Every call is passed on to the RAM tier, or fails instead. */
#include "support/shaky_ram.h"

#include "tier/ram.h"

static struct rng *source;
static uint32_t failing_once_in;

struct hearth_blob *__real_hearth_ram_put(struct hearth_ram *ram, struct hearth_buf *bytes, const uint64_t *checksum);
struct hearth_blob *__wrap_hearth_ram_put(struct hearth_ram *ram, struct hearth_buf *bytes, const uint64_t *checksum);
int __real_hearth_ram_view(struct hearth_ram *ram, const struct hearth_blob *blob, const void **bytes, size_t *len);
int __wrap_hearth_ram_view(struct hearth_ram *ram, const struct hearth_blob *blob, const void **bytes, size_t *len);

static bool fails(void) {
    return failing_once_in > 0 && rng_once_in(source, failing_once_in);
}

struct hearth_blob *__wrap_hearth_ram_put(struct hearth_ram *ram, struct hearth_buf *bytes, const uint64_t *checksum) {
    if (fails()) {
        hearth_buf_finish(bytes);
        return NULL;
    }
    return __real_hearth_ram_put(ram, bytes, checksum);
}

int __wrap_hearth_ram_view(struct hearth_ram *ram, const struct hearth_blob *blob, const void **bytes, size_t *len) {
    return fails() ? HEARTH_ERR_STATE : __real_hearth_ram_view(ram, blob, bytes, len);
}

void shaky_ram_fail(struct rng *rng, uint32_t once_in) {
    source = rng;
    failing_once_in = once_in;
}
