/* Compression of state: byte planes, then zstd, in units that stand for themselves. Threads: any. */
#ifndef HEARTH_TIER_PACK_H
#define HEARTH_TIER_PACK_H

#include "base/buf.h"

/* State is cut into units of so many bytes; the last one is shorter. */
#define HEARTH_PACK_UNIT_BYTES (256 * 1024)

enum hearth_pack_result { HEARTH_PACK_OK, HEARTH_PACK_USELESS, HEARTH_PACK_NOMEM };

/* Compresses `len` bytes (at least 1) into `out`, which must be empty. USELESS: it would not be smaller. `out` is empty
 * unless the result is OK. */
enum hearth_pack_result hearth_pack(const void *bytes, size_t len, struct hearth_buf *out);

/* Decompresses exactly `len` bytes (at least 1) into `out`, which must be empty. USELESS: `packed` is not what
 * hearth_pack() makes of so many bytes. It takes no more memory than `len` bytes and two units, whatever `packed`
 * holds, and none if the units' lengths do not fit. `out` is empty unless the result is OK. */
enum hearth_pack_result hearth_unpack(const void *packed, size_t packed_len, size_t len, struct hearth_buf *out);

#endif
