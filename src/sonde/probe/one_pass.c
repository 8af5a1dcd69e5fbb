/* The statistics of an array in one pass over memory, and its CRC-32 in the same pass.

   Built at run time by compiled.py (cc -O3 -march=native -shared), never at install time; blocks.py computes the same
   without a compiler. Plain C, with AVX2 and carry-less multiplication where the processor has them.

   The array is taken in blocks that stay in the first-level cache. Each block is summed in float64, without asking
   whether its values are finite: a NaN or an infinity makes the block's sum of squares not finite, and only such a
   block is taken again, element by element. docs/decisions/0010-one-pass-statistics.md has the measurements. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define BLOCK 2048 /* a multiple of 16 */
#define LANES 16

typedef struct {
    double max, min, sum, norm; /* of the finite values */
    int64_t num_nan, num_plus_inf, num_minus_inf, num_zero;
    int64_t int_max, int_min; /* of integers: a double cannot hold them all */
} Moments;

/* CRC-32 as in zlib, of whole blocks. `crc` is the raw register (already inverted). */
#if defined(__PCLMUL__) && defined(__SSE4_1__)
static __m128i fold(__m128i state, __m128i keys, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(state, keys, 0x00);
    __m128i high = _mm_clmulepi64_si128(state, keys, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* Folding by several 128-bit registers, then by one, then Barrett's reduction; `size` is a multiple of 16, at least
   FIRST_BYTES. The keys are powers of x modulo the polynomial 0x104c11db7, bit-reflected. */
static const uint64_t BY_ONE[2] = {0x1751997d0, 0x0ccaa009e};

#if defined(__VPCLMULQDQ__) && defined(__AVX2__)
static const uint64_t BY_EIGHT[2] = {0x1e88ef372, 0x14a7fe880};

static __m256i fold_two(__m256i state, __m256i keys, __m256i next)
{
    __m256i low = _mm256_clmulepi64_epi128(state, keys, 0x00);
    __m256i high = _mm256_clmulepi64_epi128(state, keys, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

/* Eight registers, two in each vector: 128 bytes a turn. Advances `next` and `size` and returns what they fold to. */
static __m128i fold_first(uint32_t crc, const __m128i **next, size_t *size)
{
    const __m256i by_eight = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)BY_EIGHT));
    const __m128i by_one = _mm_loadu_si128((const __m128i *)BY_ONE);
    __m256i vectors[4];
    __m128i parts[8], all;
    for (int i = 0; i < 4; ++i)
        vectors[i] = _mm256_loadu_si256((const __m256i *)*next + i);
    vectors[0] = _mm256_xor_si256(vectors[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)crc)));
    for (*next += 8, *size -= 128; *size >= 128; *next += 8, *size -= 128)
        for (int i = 0; i < 4; ++i)
            vectors[i] = fold_two(vectors[i], by_eight, _mm256_loadu_si256((const __m256i *)*next + i));
    memcpy(parts, vectors, sizeof parts);
    all = parts[0];
    for (int i = 1; i < 8; ++i)
        all = fold(all, by_one, parts[i]);
    return all;
}
#define FIRST_BYTES 128
#else
static const uint64_t BY_FOUR[2] = {0x154442bd4, 0x1c6e41596};

/* Four registers: 64 bytes a turn. */
static __m128i fold_first(uint32_t crc, const __m128i **next, size_t *size)
{
    const __m128i by_four = _mm_loadu_si128((const __m128i *)BY_FOUR), by_one = _mm_loadu_si128((const __m128i *)BY_ONE);
    __m128i parts[4], all;
    for (int i = 0; i < 4; ++i)
        parts[i] = _mm_loadu_si128(*next + i);
    parts[0] = _mm_xor_si128(parts[0], _mm_cvtsi32_si128((int)crc));
    for (*next += 4, *size -= 64; *size >= 64; *next += 4, *size -= 64)
        for (int i = 0; i < 4; ++i)
            parts[i] = fold(parts[i], by_four, _mm_loadu_si128(*next + i));
    all = parts[0];
    for (int i = 1; i < 4; ++i)
        all = fold(all, by_one, parts[i]);
    return all;
}
#define FIRST_BYTES 64
#endif

static uint32_t crc_folded(uint32_t crc, const unsigned char *bytes, size_t size)
{
    const __m128i by_one = _mm_loadu_si128((const __m128i *)BY_ONE);
    const __m128i last_key = _mm_set_epi64x(0, 0x163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    const __m128i low_word = _mm_set_epi32(0, ~0, 0, ~0);
    const __m128i *next = (const __m128i *)bytes;
    __m128i a = fold_first(crc, &next, &size), b;
    for (; size >= 16; ++next, size -= 16)
        a = fold(a, by_one, _mm_loadu_si128(next));
    a = _mm_xor_si128(_mm_clmulepi64_si128(a, by_one, 0x10), _mm_srli_si128(a, 8));
    a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_word), last_key, 0x00), _mm_srli_si128(a, 4));
    b = _mm_clmulepi64_si128(_mm_and_si128(a, low_word), barrett, 0x10);
    b = _mm_clmulepi64_si128(_mm_and_si128(b, low_word), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}
#endif

static uint32_t crc_step(uint32_t crc, const unsigned char *bytes, size_t size)
{
#if defined(__PCLMUL__) && defined(__SSE4_1__)
    if (size >= FIRST_BYTES) {
        size_t folded = size & ~(size_t)15;
        crc = crc_folded(crc, bytes, folded);
        bytes += folded;
        size -= folded;
    }
#endif
    while (size--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; ++bit)
            crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1)));
    }
    return crc;
}

/* Is the fast form of crc_step compiled in? Without it zlib is quicker. */
int has_fast_crc(void)
{
#if defined(__PCLMUL__) && defined(__SSE4_1__)
    return 1;
#else
    return 0;
#endif
}

static inline double from_bfloat16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

#if defined(__FLT16_MANT_DIG__)
static inline double from_float16(uint16_t bits)
{
    _Float16 value;
    memcpy(&value, &bits, 2);
    return (float)value;
}
#else
static inline double from_float16(uint16_t bits)
{
    int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY)
        : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -size : size;
}
#endif

/* What one block gave, before it is known to be finite. */
typedef struct {
    double max, min, sum, squares;
    int64_t zeros;
} Block;

/* A block in lanes, for the compiler to turn into what vector code it can. */
#define LANES_OF(NAME, TYPE, LOAD)                                                                                     \
    static void NAME(const TYPE *restrict data, int64_t num, Block *restrict block)                                    \
    {                                                                                                                  \
        double maxs[LANES], mins[LANES], sums[LANES] = {0}, squares[LANES] = {0};                                      \
        int64_t zeros[LANES] = {0};                                                                                    \
        for (int j = 0; j < LANES; ++j) {                                                                              \
            maxs[j] = -INFINITY;                                                                                       \
            mins[j] = INFINITY;                                                                                        \
        }                                                                                                              \
        for (int64_t i = 0; i < num; i += LANES) {                                                                     \
            int width = num - i < LANES ? (int)(num - i) : LANES;                                                      \
            for (int j = 0; j < width; ++j) {                                                                          \
                double x = LOAD(data[i + j]);                                                                          \
                maxs[j] = x > maxs[j] ? x : maxs[j];                                                                   \
                mins[j] = x < mins[j] ? x : mins[j];                                                                   \
                sums[j] += x;                                                                                          \
                squares[j] += x * x;                                                                                   \
                zeros[j] += x == 0;                                                                                    \
            }                                                                                                          \
        }                                                                                                              \
        for (int j = 0; j < LANES; ++j) {                                                                              \
            block->max = maxs[j] > block->max ? maxs[j] : block->max;                                                  \
            block->min = mins[j] < block->min ? mins[j] : block->min;                                                  \
            block->sum += sums[j];                                                                                     \
            block->squares += squares[j];                                                                              \
            block->zeros += zeros[j];                                                                                  \
        }                                                                                                              \
    }

#define AS_IT_IS(x) ((double)(x))
LANES_OF(lanes_of_float32, float, AS_IT_IS)
LANES_OF(lanes_of_float64, double, AS_IT_IS)
LANES_OF(lanes_of_float16, uint16_t, from_float16)
LANES_OF(lanes_of_bfloat16, uint16_t, from_bfloat16)

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
static inline double sum_of(__m256d values)
{
    double lanes[4];
    _mm256_storeu_pd(lanes, values);
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

/* Sixteen values at a time in eleven registers; memory is asked for 2 KiB ahead, which hides its latency. */
#define VECTORS_OF(NAME, TYPE, LOAD, LANES_NAME)                                                                       \
    static void NAME(const TYPE *restrict data, int64_t num, Block *restrict block)                                    \
    {                                                                                                                  \
        const __m256 zero = _mm256_setzero_ps();                                                                       \
        __m256 max = _mm256_set1_ps(-INFINITY), min = _mm256_set1_ps(INFINITY);                                        \
        __m256d s0 = _mm256_setzero_pd(), s1 = s0, s2 = s0, s3 = s0, q0 = s0, q1 = s0, q2 = s0, q3 = s0, x;            \
        __m256i zeros = _mm256_setzero_si256();                                                                        \
        int64_t i = 0;                                                                                                 \
        for (; i + 16 <= num; i += 16) {                                                                               \
            __m256 a = LOAD(data + i), b = LOAD(data + i + 8);                                                         \
            _mm_prefetch((const char *)(data + i) + 2048, _MM_HINT_T0);                                                \
            max = _mm256_max_ps(b, _mm256_max_ps(a, max));                                                             \
            min = _mm256_min_ps(b, _mm256_min_ps(a, min));                                                             \
            zeros = _mm256_sub_epi32(zeros, _mm256_castps_si256(_mm256_cmp_ps(a, zero, _CMP_EQ_OQ)));                  \
            zeros = _mm256_sub_epi32(zeros, _mm256_castps_si256(_mm256_cmp_ps(b, zero, _CMP_EQ_OQ)));                  \
            x = _mm256_cvtps_pd(_mm256_castps256_ps128(a));                                                            \
            s0 = _mm256_add_pd(s0, x);                                                                                 \
            q0 = _mm256_fmadd_pd(x, x, q0);                                                                            \
            x = _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));                                                          \
            s1 = _mm256_add_pd(s1, x);                                                                                 \
            q1 = _mm256_fmadd_pd(x, x, q1);                                                                            \
            x = _mm256_cvtps_pd(_mm256_castps256_ps128(b));                                                            \
            s2 = _mm256_add_pd(s2, x);                                                                                 \
            q2 = _mm256_fmadd_pd(x, x, q2);                                                                            \
            x = _mm256_cvtps_pd(_mm256_extractf128_ps(b, 1));                                                          \
            s3 = _mm256_add_pd(s3, x);                                                                                 \
            q3 = _mm256_fmadd_pd(x, x, q3);                                                                            \
        }                                                                                                              \
        float maxs[8], mins[8];                                                                                        \
        int32_t counts[8];                                                                                             \
        _mm256_storeu_ps(maxs, max);                                                                                   \
        _mm256_storeu_ps(mins, min);                                                                                   \
        _mm256_storeu_si256((__m256i *)counts, zeros);                                                                 \
        for (int j = 0; j < 8; ++j) {                                                                                  \
            block->max = maxs[j] > block->max ? maxs[j] : block->max;                                                  \
            block->min = mins[j] < block->min ? mins[j] : block->min;                                                  \
            block->zeros += counts[j];                                                                                 \
        }                                                                                                              \
        block->sum += sum_of(_mm256_add_pd(_mm256_add_pd(s0, s1), _mm256_add_pd(s2, s3)));                             \
        block->squares += sum_of(_mm256_add_pd(_mm256_add_pd(q0, q1), _mm256_add_pd(q2, q3)));                         \
        if (i < num)                                                                                                   \
            LANES_NAME(data + i, num - i, block);                                                                      \
    }

#define LOAD_FLOAT32(at) _mm256_loadu_ps(at)
#define LOAD_FLOAT16(at) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(at)))
#define LOAD_BFLOAT16(at)                                                                                              \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(at))), 16))
VECTORS_OF(block_of_float32, float, LOAD_FLOAT32, lanes_of_float32)
VECTORS_OF(block_of_float16, uint16_t, LOAD_FLOAT16, lanes_of_float16)
VECTORS_OF(block_of_bfloat16, uint16_t, LOAD_BFLOAT16, lanes_of_bfloat16)
#else
#define block_of_float32 lanes_of_float32
#define block_of_float16 lanes_of_float16
#define block_of_bfloat16 lanes_of_bfloat16
#endif

/* Floats: blocks, and the block with something not finite again by itself. `crc` may be NULL. */
#define MEASURE_FLOAT(NAME, TYPE, LOAD, BLOCK_NAME)                                                                    \
    void NAME(const TYPE *restrict data, int64_t num, Moments *restrict out, uint32_t *crc)                            \
    {                                                                                                                  \
        Block all = {-INFINITY, INFINITY, 0, 0, 0};                                                                    \
        memset(out, 0, sizeof *out);                                                                                   \
        for (int64_t begin = 0; begin < num; begin += BLOCK) {                                                         \
            int64_t size = num - begin < BLOCK ? num - begin : BLOCK;                                                  \
            Block next = all;                                                                                          \
            next.sum = next.squares = 0;                                                                               \
            BLOCK_NAME(data + begin, size, &next);                                                                     \
            if (isfinite(next.squares)) {                                                                              \
                next.sum += all.sum;                                                                                   \
                next.squares += all.squares;                                                                           \
                all = next;                                                                                            \
            } else {                                                                                                   \
                for (int64_t i = begin; i < begin + size; ++i) {                                                       \
                    double x = LOAD(data[i]);                                                                          \
                    if (isnan(x)) {                                                                                    \
                        ++out->num_nan;                                                                                \
                    } else if (isinf(x)) {                                                                             \
                        ++*(x > 0 ? &out->num_plus_inf : &out->num_minus_inf);                                         \
                    } else {                                                                                           \
                        all.max = x > all.max ? x : all.max;                                                           \
                        all.min = x < all.min ? x : all.min;                                                           \
                        all.sum += x;                                                                                  \
                        all.squares += x * x;                                                                          \
                        all.zeros += x == 0;                                                                           \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            if (crc)                                                                                                   \
                *crc = crc_step(*crc, (const unsigned char *)(data + begin), (size_t)size * sizeof(TYPE));             \
        }                                                                                                              \
        out->max = all.max;                                                                                            \
        out->min = all.min;                                                                                            \
        out->sum = all.sum;                                                                                            \
        out->norm = sqrt(all.squares);                                                                                 \
        out->num_zero = all.zeros;                                                                                     \
    }

MEASURE_FLOAT(measure_float32, float, AS_IT_IS, block_of_float32)
MEASURE_FLOAT(measure_float16, uint16_t, from_float16, block_of_float16)
MEASURE_FLOAT(measure_bfloat16, uint16_t, from_bfloat16, block_of_bfloat16)
MEASURE_FLOAT(float64_squared, double, AS_IT_IS, lanes_of_float64)

/* Squares of doubles overflow above 1e154 and vanish below 1e-154: then the norm is taken again, scaled. */
void measure_float64(const double *restrict data, int64_t num, Moments *restrict out, uint32_t *crc)
{
    float64_squared(data, num, out, crc);
    double largest = fmax(fabs(out->max), fabs(out->min));
    if (!isfinite(largest) || largest == 0 || (out->norm < 1e150 && out->norm > 1e-140))
        return;
    double squares = 0;
    for (int64_t i = 0; i < num; ++i) {
        double scaled = data[i] / largest;
        squares += isfinite(data[i]) ? scaled * scaled : 0;
    }
    out->norm = largest * sqrt(squares);
}

#define MEASURE_INTEGER(NAME, TYPE, WIDE)                                                                              \
    void NAME(const TYPE *restrict data, int64_t num, Moments *restrict out, uint32_t *crc)                            \
    {                                                                                                                  \
        TYPE max = num ? data[0] : 0, min = max;                                                                       \
        double sum = 0, squares = 0;                                                                                   \
        int64_t zeros = 0;                                                                                             \
        memset(out, 0, sizeof *out);                                                                                   \
        for (int64_t begin = 0; begin < num; begin += BLOCK) {                                                         \
            int64_t end = num - begin < BLOCK ? num : begin + BLOCK;                                                   \
            double block_sum = 0, block_squares = 0;                                                                   \
            for (int64_t i = begin; i < end; ++i) {                                                                    \
                TYPE x = data[i];                                                                                      \
                max = x > max ? x : max;                                                                               \
                min = x < min ? x : min;                                                                               \
                block_sum += (double)x;                                                                                \
                block_squares += (double)x * (double)x;                                                                \
                zeros += x == 0;                                                                                       \
            }                                                                                                          \
            sum += block_sum;                                                                                          \
            squares += block_squares;                                                                                  \
            if (crc)                                                                                                   \
                *crc = crc_step(*crc, (const unsigned char *)(data + begin), (size_t)(end - begin) * sizeof(TYPE));    \
        }                                                                                                              \
        out->int_max = (int64_t)(WIDE)max;                                                                             \
        out->int_min = (int64_t)(WIDE)min;                                                                             \
        out->sum = sum;                                                                                                \
        out->norm = sqrt(squares);                                                                                     \
        out->num_zero = zeros;                                                                                         \
    }

MEASURE_INTEGER(measure_int8, int8_t, int64_t)
MEASURE_INTEGER(measure_int16, int16_t, int64_t)
MEASURE_INTEGER(measure_int32, int32_t, int64_t)
MEASURE_INTEGER(measure_int64, int64_t, int64_t)
MEASURE_INTEGER(measure_uint8, uint8_t, uint64_t)
MEASURE_INTEGER(measure_uint16, uint16_t, uint64_t)
MEASURE_INTEGER(measure_uint32, uint32_t, uint64_t)
MEASURE_INTEGER(measure_uint64, uint64_t, uint64_t)
