/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transposes by tiles.
 *
 * A tile of the source is copied to a dense buffer in the first-level cache, then transposed from
 * there in registers to whole destination lines. Without the buffer, rows whose distance is a
 * multiple of 4 KiB (every usual hidden size) compete for one cache set. Tiles walk along source
 * rows, so that each row's next bytes can be prefetched, and give 256 bytes of each destination
 * row.
 */
#include "kernel/kernel_ops.h"
#include "kernel/tile.h"

#define LINE 64
#define THIN_ROW 128

/* Through a small buffer: partial lines, unaligned lines, or with a digest. */
static void put_lane(heft__sink_t *sink, uint8_t *dst, int64_t dst_step, const uint8_t *tile,
                     int64_t n_rows, int64_t n_cols, uint32_t elem)
{
    _Alignas(LINE) uint8_t bounce[16 * HEFT__TILE_BYTES];
    int64_t n_lines = (n_rows * elem + LINE - 1) / LINE;
    sink->ops->transpose(bounce, HEFT__TILE_BYTES, tile, n_lines, 1, elem, false);
    heft__sink_put_runs(sink, dst, dst_step, bounce, HEFT__TILE_BYTES, n_cols, n_rows * elem,
                        HEFT__TILE_BYTES);
}

/* Destination rows shorter than two lines that follow one another: all of them in one stretch. */
static void put_thin(heft__sink_t *sink, uint8_t *dst, const uint8_t *tile, int64_t n_rows,
                     int64_t n_cols, uint32_t elem)
{
    _Alignas(LINE) uint8_t bounce[16 * HEFT__TILE_BYTES];
    _Alignas(LINE) uint8_t thin[HEFT__TILE_BYTES * THIN_ROW];
    int64_t row = n_rows * elem;
    int64_t n_lines = (row + LINE - 1) / LINE;
    int64_t lane = 16 / elem;
    for (int64_t c = 0; c < n_cols; c += lane) {
        int64_t n = heft__min_i64(lane, n_cols - c);
        sink->ops->transpose(bounce, HEFT__TILE_BYTES, tile + c * elem, n_lines, 1, elem, false);
        sink->ops->move(thin + c * row, row, bounce, HEFT__TILE_BYTES, n, row, false, 0);
    }
    heft__sink_put(sink, dst, thin, n_cols * row, 0);
}

static bool is_aligned(const uint8_t *dst, int64_t dst_step)
{
    return (uintptr_t)dst % LINE == 0 && dst_step % LINE == 0;
}

void heft__sink_put_tile(heft__sink_t *sink, uint8_t *dst, int64_t dst_step, const uint8_t *tile,
                         int64_t n_rows, int64_t n_cols, uint32_t elem)
{
    if (dst_step == n_rows * elem && dst_step < THIN_ROW) {
        put_thin(sink, dst, tile, n_rows, n_cols, elem);
        return;
    }
    int64_t lane = 16 / elem;
    int64_t direct = 0; /* lanes that need no buffer */
    if (!sink->has_digest && n_rows * elem % LINE == 0 &&
        (!sink->nt || is_aligned(dst, dst_step))) {
        direct = n_cols / lane;
        sink->ops->transpose(dst, dst_step, tile, n_rows * elem / LINE, direct, elem, sink->nt);
    }
    for (int64_t c = direct * lane; c < n_cols; c += lane) {
        put_lane(sink, dst + c * dst_step, dst_step, tile + c * elem, n_rows,
                 heft__min_i64(lane, n_cols - c), elem);
    }
}

/* Rows before the first whole destination line, where all destination rows have one alignment. */
static int64_t head_rows(const heft__sink_t *sink, const uint8_t *dst, int64_t dst_step,
                         uint32_t elem)
{
    int64_t head = -(int64_t)((uintptr_t)dst % LINE) & (LINE - 1);
    return sink->nt && dst_step % LINE == 0 && head % elem == 0 ? head / elem : 0;
}

void heft__transpose(heft__sink_t *sink, uint8_t *dst, int64_t dst_step, const uint8_t *src,
                     int64_t src_step, int64_t n_rows, int64_t n_cols, uint32_t elem)
{
    _Alignas(LINE) uint8_t tile[HEFT__TILE_ROWS * HEFT__TILE_STEP];
    int64_t tile_rows = heft__tile_rows(elem);
    int64_t tile_cols = HEFT__TILE_BYTES / elem;
    int64_t nr = head_rows(sink, dst, dst_step, elem);
    nr = heft__min_i64(nr > 0 ? nr : tile_rows, n_rows);
    for (int64_t r = 0; r < n_rows; r += nr, nr = heft__min_i64(tile_rows, n_rows - r)) {
        for (int64_t c = 0; c < n_cols; c += tile_cols) {
            int64_t nc = heft__min_i64(tile_cols, n_cols - c);
            sink->ops->move(tile, HEFT__TILE_STEP, src + r * src_step + c * elem, src_step, nr,
                            nc * elem, false, HEFT__TILE_BYTES);
            heft__sink_put_tile(sink, dst + c * dst_step + r * elem, dst_step, tile, nr, nc, elem);
        }
    }
}
