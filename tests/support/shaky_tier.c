/* Every call is passed on to the RAM tier, or fails instead. */
#include "support/shaky_tier.h"

#include "base/assert.h"

static bool shakes(struct shaky_tier *tier) {
    return tier->once_in > 0 && rng_once_in(tier->rng, tier->once_in);
}

static struct hearth_blob *shaky_put(struct hearth_tier *tier, struct hearth_buf *bytes, const uint64_t *checksum) {
    struct shaky_tier *shaky = (struct shaky_tier *)tier;
    if (shakes(shaky)) {
        hearth_buf_finish(bytes);
        return NULL;
    }
    struct hearth_blob *blob = shaky->ram->ops->put(shaky->ram, bytes, checksum);
    tier->used_bytes = shaky->ram->used_bytes;
    return blob;
}

static int shaky_view(struct hearth_tier *tier, const struct hearth_blob *blob, const void **bytes, size_t *len) {
    struct shaky_tier *shaky = (struct shaky_tier *)tier;
    return shakes(shaky) ? HEARTH_ERR_STATE : shaky->ram->ops->view(shaky->ram, blob, bytes, len);
}

static void shaky_drop(struct hearth_tier *tier, struct hearth_blob *blob) {
    struct shaky_tier *shaky = (struct shaky_tier *)tier;
    shaky->ram->ops->drop(shaky->ram, blob);
    tier->used_bytes = shaky->ram->used_bytes;
}

static const struct hearth_tier_ops shaky_ops = {.put = shaky_put, .view = shaky_view, .drop = shaky_drop};

void shaky_tier_init(struct shaky_tier *shaky, struct rng *rng) {
    *shaky = (struct shaky_tier){.base = {.ops = &shaky_ops, .name = "shaky"}, .rng = rng};
    shaky->ram = hearth_ram_tier_create();
    HEARTH_ASSERT(shaky->ram != NULL);
}
