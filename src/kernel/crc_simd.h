/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both CRCs by folding with carry-less multiplication (Gopal et al., "Fast CRC computation for
 * generic polynomials using PCLMULQDQ"), with or without a copy of the data in the same pass.
 * Included once by each vector level, after C_BYTES (16, 32 or 64) and ops_simd.h.
 *
 * A lane of 16 bytes is a polynomial a x^64 + b, a in its low half. Moving it d bytes towards the
 * front multiplies it by x^(8d): fold[d / 16] holds x^(64 + 8d - 1) and x^(8d - 1) mod P for the
 * two halves; the -1 is the shift by one that multiplying reflected polynomials brings. C_ACCS
 * vectors are folded side by side over blocks, then into one lane, whose remainder is the CRC.
 */

#if C_BYTES == 64
typedef __m512i crc_vec_t;
#define c_load(p) _mm512_loadu_si512((const void *)(p))
#define c_xor(a, b) _mm512_xor_si512((a), (b))
#define c_store(p, v) _mm512_storeu_si512((void *)(p), (v))
#define c_stream(p, v) _mm512_stream_si512((__m512i *)(void *)(p), (v))
#define c_widen(k) _mm512_broadcast_i32x4(k)
#define c_first(k) _mm512_zextsi128_si512(k)
#define c_lane(v, j) _mm512_extracti32x4_epi32((v), (j))
#define c_fold_xor(v, k, next)                                          \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128((v), (k), 0x00), \
                              _mm512_clmulepi64_epi128((v), (k), 0x11), (next), 0x96)
#define C_ACCS 4
#elif C_BYTES == 32
typedef __m256i crc_vec_t;
#define c_load(p) _mm256_loadu_si256((const __m256i_u *)(const void *)(p))
#define c_xor(a, b) _mm256_xor_si256((a), (b))
#define c_store(p, v) _mm256_storeu_si256((__m256i_u *)(void *)(p), (v))
#define c_stream(p, v) _mm256_stream_si256((__m256i *)(void *)(p), (v))
#define c_widen(k) _mm256_broadcastsi128_si256(k)
#define c_first(k) _mm256_zextsi128_si256(k)
#define c_lane(v, j) _mm256_extracti128_si256((v), (j))
#define c_fold_xor(v, k, next)                                                   \
    _mm256_xor_si256(_mm256_xor_si256(_mm256_clmulepi64_epi128((v), (k), 0x00),  \
                                      _mm256_clmulepi64_epi128((v), (k), 0x11)), \
                     (next))
#define C_ACCS 8
#else
typedef __m128i crc_vec_t;
#define c_load(p) _mm_loadu_si128((const __m128i_u *)(const void *)(p))
#define c_xor(a, b) _mm_xor_si128((a), (b))
#define c_store(p, v) _mm_storeu_si128((__m128i_u *)(void *)(p), (v))
#define c_stream(p, v) _mm_stream_si128((__m128i *)(void *)(p), (v))
#define c_widen(k) (k)
#define c_first(k) (k)
#define c_lane(v, j) (v)
#define c_fold_xor(v, k, next)                                                                     \
    _mm_xor_si128(                                                                                 \
        _mm_xor_si128(_mm_clmulepi64_si128((v), (k), 0x00), _mm_clmulepi64_si128((v), (k), 0x11)), \
        (next))
#define C_ACCS 8
#endif

#define C_BLOCK (C_ACCS * C_BYTES)

typedef enum crc_store { CRC_NO_STORE, CRC_STORE, CRC_STREAM } crc_store_t;

static inline __m128i fold_pair(const heft__fold_t *fold, int distance)
{
    return _mm_load_si128((const __m128i *)(const void *)&fold[distance / 16]);
}

static inline __m128i fold_lane(__m128i v, __m128i k, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(v, k, 0x00);
    __m128i high = _mm_clmulepi64_si128(v, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* At dst + at; without a store there is no dst to count from. */
ALWAYS_INLINE void crc_put(uint8_t *dst, int64_t at, crc_vec_t v, crc_store_t how)
{
    if (how == CRC_STREAM) {
        c_stream(dst + at, v);
    } else if (how == CRC_STORE) {
        c_store(dst + at, v);
    }
}

/* Lanes of one vector into the last one. */
static inline __m128i fold_vector(const heft__fold_t *fold, crc_vec_t v)
{
#if C_BYTES == 64
    __m128i all = fold_lane(c_lane(v, 0), fold_pair(fold, 48), c_lane(v, 3));
    all = fold_lane(c_lane(v, 1), fold_pair(fold, 32), all);
    return fold_lane(c_lane(v, 2), fold_pair(fold, 16), all);
#elif C_BYTES == 32
    return fold_lane(c_lane(v, 0), fold_pair(fold, 16), c_lane(v, 1));
#else
    (void)fold;
    return v;
#endif
}

/* A block of its own or many: the folded lane, and how far it came. n >= C_BYTES. */
ALWAYS_INLINE __m128i fold_blocks(const heft__fold_t *fold, __m128i first, uint8_t *dst,
                                  const uint8_t *src, int64_t n, crc_store_t how, int64_t ahead,
                                  int64_t *done)
{
    crc_vec_t acc[C_ACCS];
    crc_vec_t all;
    int64_t i = C_BYTES;
    if (n >= C_BLOCK) {
        for (int k = 0; k < C_ACCS; k++) {
            if (k * C_BYTES % LINE == 0) {
                prefetch(src + k * C_BYTES + ahead);
            }
            acc[k] = c_load(src + k * C_BYTES);
            crc_put(dst, (int64_t)k * C_BYTES, acc[k], how);
        }
        acc[0] = c_xor(acc[0], c_first(first));
        const crc_vec_t by_block = c_widen(fold_pair(fold, C_BLOCK));
        for (i = C_BLOCK; i + C_BLOCK <= n; i += C_BLOCK) {
            for (int k = 0; k < C_ACCS; k++) {
                const uint8_t *at = src + i + k * C_BYTES;
                if (k * C_BYTES % LINE == 0) {
                    prefetch(at + ahead);
                }
                crc_vec_t next = c_load(at);
                crc_put(dst, i + (int64_t)k * C_BYTES, next, how);
                acc[k] = c_fold_xor(acc[k], by_block, next);
            }
        }
        all = acc[C_ACCS - 1];
        for (int k = 0; k < C_ACCS - 1; k++) {
            crc_vec_t by = c_widen(fold_pair(fold, (C_ACCS - 1 - k) * C_BYTES));
            all = c_fold_xor(acc[k], by, all);
        }
    } else {
        all = c_load(src);
        crc_put(dst, 0, all, how);
        all = c_xor(all, c_first(first));
    }
    const crc_vec_t by_vector = c_widen(fold_pair(fold, C_BYTES));
    for (; i + C_BYTES <= n; i += C_BYTES) {
        crc_vec_t next = c_load(src + i);
        crc_put(dst, i, next, how);
        all = c_fold_xor(all, by_vector, next);
    }
    *done = i;
    return fold_vector(fold, all);
}

/* The remainder of a lane: a x^128 + b x^64 mod P. The first product brings a down to 128 bits;
 * then Barrett with mu = floor(x^128 / P). */
static inline uint64_t reduce_crc64(const heft__crc_tables_t *t, __m128i lane)
{
    const __m128i k = _mm_set_epi64x((long long)t->barrett_mu, (long long)t->x127);
    const __m128i p = _mm_cvtsi64_si128((long long)(HEFT__CRC64_POLY << 1));
    __m128i sum = _mm_clmulepi64_si128(lane, k, 0x00);
    __m128i u = _mm_xor_si128(sum, _mm_srli_si128(lane, 8));
    __m128i q = _mm_clmulepi64_si128(u, k, 0x10);
    __m128i r = _mm_clmulepi64_si128(q, p, 0x00);
    r = _mm_xor_si128(_mm_xor_si128(_mm_srli_si128(r, 8), q), _mm_srli_si128(sum, 8));
    return (uint64_t)_mm_cvtsi128_si64(r);
}

static inline uint32_t reduce_crc32c(__m128i lane)
{
    uint64_t crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(lane));
    return (uint32_t)_mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(lane, 1));
}

/* Fewer than C_BYTES, then the last few. */
static inline uint64_t crc64_short(uint64_t crc, const uint8_t *src, int64_t n)
{
    const heft__crc_tables_t *t = heft__crc_tables();
    if (n >= 16) {
        __m128i k = fold_pair(t->fold64, 16);
        __m128i lane = _mm_xor_si128(_mm_loadu_si128((const __m128i_u *)(const void *)src),
                                     _mm_cvtsi64_si128((long long)crc));
        for (n -= 16, src += 16; n >= 16; n -= 16, src += 16) {
            lane = fold_lane(lane, k, _mm_loadu_si128((const __m128i_u *)(const void *)src));
        }
        crc = reduce_crc64(t, lane);
    }
    return n > 0 ? heft__scalar_crc64(crc, src, n) : crc;
}

static inline uint32_t crc32c_short(uint32_t crc, const uint8_t *src, int64_t n)
{
    uint64_t wide = crc;
    for (; n >= 8; n -= 8, src += 8) {
        wide = _mm_crc32_u64(wide, heft__get_le64(src));
    }
    crc = (uint32_t)wide;
    for (; n > 0; n--, src++) {
        crc = _mm_crc32_u8(crc, *src);
    }
    return crc;
}

ALWAYS_INLINE uint64_t crc64_any(uint64_t crc, uint8_t *dst, const uint8_t *src, int64_t n,
                                 crc_store_t how, int64_t ahead)
{
    int64_t i = 0;
    if (n >= C_BYTES) {
        const heft__crc_tables_t *t = heft__crc_tables();
        __m128i first = _mm_cvtsi64_si128((long long)crc);
        crc = reduce_crc64(t, fold_blocks(t->fold64, first, dst, src, n, how, ahead, &i));
    }
    if (i == n) {
        return crc;
    }
    if (how != CRC_NO_STORE) {
        move_short(dst + i, src + i, n - i);
    }
    return crc64_short(crc, src + i, n - i);
}

ALWAYS_INLINE uint32_t crc32c_any(uint32_t crc, uint8_t *dst, const uint8_t *src, int64_t n,
                                  crc_store_t how, int64_t ahead)
{
    int64_t i = 0;
    if (n >= C_BYTES) {
        const heft__crc_tables_t *t = heft__crc_tables();
        __m128i first = _mm_cvtsi32_si128((int)crc);
        crc = reduce_crc32c(fold_blocks(t->fold32c, first, dst, src, n, how, ahead, &i));
    }
    if (i == n) {
        return crc;
    }
    if (how != CRC_NO_STORE) {
        move_short(dst + i, src + i, n - i);
    }
    return crc32c_short(crc, src + i, n - i);
}

static uint64_t simd_crc64(uint64_t crc, const uint8_t *src, int64_t n)
{
    return crc64_any(crc, NULL, src, n, CRC_NO_STORE, AHEAD);
}

static uint32_t simd_crc32c(uint32_t crc, const uint8_t *src, int64_t n)
{
    return crc32c_any(crc, NULL, src, n, CRC_NO_STORE, AHEAD);
}

static uint64_t simd_crc64_move(uint64_t crc, uint8_t *dst, const uint8_t *src, int64_t n, bool nt,
                                int64_t ahead)
{
    if (!nt || n < 4 * LINE) {
        return crc64_any(crc, dst, src, n, CRC_STORE, ahead);
    }
    int64_t head = to_line(dst);
    if (head > 0) {
        move_short(dst, src, head);
        crc = crc64_short(crc, src, head);
    }
    int64_t whole = (n - head) / LINE * LINE;
    crc = crc64_any(crc, dst + head, src + head, whole, CRC_STREAM, ahead);
    return crc64_any(crc, dst + head + whole, src + head + whole, n - head - whole, CRC_STORE,
                     ahead);
}

static uint32_t simd_crc32c_move(uint32_t crc, uint8_t *dst, const uint8_t *src, int64_t n, bool nt,
                                 int64_t ahead)
{
    if (!nt || n < 4 * LINE) {
        return crc32c_any(crc, dst, src, n, CRC_STORE, ahead);
    }
    int64_t head = to_line(dst);
    if (head > 0) {
        move_short(dst, src, head);
        crc = crc32c_short(crc, src, head);
    }
    int64_t whole = (n - head) / LINE * LINE;
    crc = crc32c_any(crc, dst + head, src + head, whole, CRC_STREAM, ahead);
    return crc32c_any(crc, dst + head + whole, src + head + whole, n - head - whole, CRC_STORE,
                      ahead);
}

/* The lane of one run of 16-byte pieces. */
ALWAYS_INLINE __m128i lane_of(const heft__crc_tables_t *t, uint8_t *dst, const uint8_t *src,
                              int64_t n, crc_store_t how, int64_t ahead)
{
    __m128i lane = _mm_setzero_si128();
    int64_t i = 0;
    if (n >= C_BYTES) {
        lane = fold_blocks(t->fold64, lane, dst, src, n, how, ahead, &i);
    }
    for (; i < n; i += 16) {
        __m128i next = _mm_loadu_si128((const __m128i_u *)(const void *)(src + i));
        if (how != CRC_NO_STORE) {
            _mm_storeu_si128((__m128i_u *)(void *)(dst + i), next);
        }
        lane = fold_lane(lane, fold_pair(t->fold64, 16), next);
    }
    return lane;
}

/* Lanes are combined without being reduced in between. */
static uint64_t simd_crc64_runs(const heft__fold_t *by, uint8_t *dst, int64_t dst_step,
                                const uint8_t *src, int64_t src_step, int64_t n_runs, int64_t n,
                                bool nt, int64_t ahead)
{
    const heft__crc_tables_t *t = heft__crc_tables();
    const __m128i k = _mm_loadu_si128((const __m128i_u *)(const void *)by);
    bool can_stream =
        nt && (uintptr_t)dst % LINE == 0 && n % LINE == 0 && (n_runs == 1 || dst_step % LINE == 0);
    __m128i all = _mm_setzero_si128();
    for (int64_t r = 0; r < n_runs; r++) {
        __m128i lane;
        if (can_stream) {
            lane = lane_of(t, dst, src, n, CRC_STREAM, ahead);
        } else if (nt) {
            lane = lane_of(t, dst, src, n, CRC_NO_STORE, ahead);
            move_stream(dst, src, n, 0);
        } else {
            lane = lane_of(t, dst, src, n, CRC_STORE, ahead);
        }
        all = fold_lane(all, k, lane);
        dst += dst_step;
        src += src_step;
    }
    return reduce_crc64(t, all);
}

/* crc * x^(8n): one product for each byte of n that is not 0, by powers already divided by x. */
static uint64_t simd_crc64_shift(uint64_t crc, int64_t n_bytes)
{
    const heft__crc_tables_t *t = heft__crc_tables();
    const __m128i mu = _mm_cvtsi64_si128((long long)t->barrett_mu);
    const __m128i p = _mm_cvtsi64_si128((long long)(HEFT__CRC64_POLY << 1));
    uint64_t n = (uint64_t)n_bytes;
    __m128i value = _mm_cvtsi64_si128((long long)crc);
    for (int k = 0; n != 0; k++, n >>= 8) {
        if ((n & 255) == 0) {
            continue;
        }
        __m128i power = _mm_cvtsi64_si128((long long)t->power_over_x[k][n & 255]);
        __m128i u = _mm_clmulepi64_si128(value, power, 0x00);
        __m128i q = _mm_clmulepi64_si128(u, mu, 0x00);
        __m128i r = _mm_clmulepi64_si128(q, p, 0x00);
        value = _mm_xor_si128(_mm_xor_si128(_mm_srli_si128(r, 8), q), _mm_srli_si128(u, 8));
    }
    return (uint64_t)_mm_cvtsi128_si64(value);
}
