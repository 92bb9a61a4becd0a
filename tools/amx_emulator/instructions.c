/* The instructions of AMX that our kernels use, for processors that do not have it.
 *
 * After Intel's Software Developer's Manual, volume 2: sums of products of bf16 are kept apart for
 * even and odd elements and added at the end, denormal numbers are 0. Whoever uses a register that
 * is not configured, or tiles of sizes that do not match, ends the process: the processor would
 * raise an exception.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint8_t palette, start, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} Configuration;

static __thread Configuration configured;
static __thread uint8_t tiles[8][16][64];

static void require(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "AMX emulator: %s\n", what);
        abort();
    }
}

void emulated_ldtilecfg(const void *memory)
{
    memcpy(&configured, memory, sizeof configured);
    memset(tiles, 0, sizeof tiles);
    require(configured.palette == 1, "ldtilecfg: there is one palette, 1");
    for (int i = 0; i < 8; i++)
        require(configured.row_bytes[i] <= 64 && configured.rows[i] <= 16,
                "ldtilecfg: a tile has at most 16 rows of 64 bytes");
}

void emulated_tilerelease(void)
{
    memset(&configured, 0, sizeof configured);
}

void emulated_tilezero(uint8_t tile)
{
    require(configured.palette, "tilezero before ldtilecfg");
    memset(tiles[tile], 0, sizeof tiles[tile]);
}

void emulated_tileload(uint8_t tile, const uint8_t *memory, int64_t step)
{
    require(configured.palette, "tileload before ldtilecfg");
    memset(tiles[tile], 0, sizeof tiles[tile]);
    for (int row = 0; row < configured.rows[tile]; row++)
        memcpy(tiles[tile][row], memory + row * step, configured.row_bytes[tile]);
}

void emulated_tilestore(uint8_t tile, uint8_t *memory, int64_t step)
{
    require(configured.palette, "tilestore before ldtilecfg");
    for (int row = 0; row < configured.rows[tile]; row++)
        memcpy(memory + row * step, tiles[tile][row], configured.row_bytes[tile]);
}

static float without_denormals(float x)
{
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x;
}

static float widened(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return without_denormals(x);
}

static void require_product(uint8_t sums, uint8_t left, uint8_t right)
{
    require(configured.palette, "a product before ldtilecfg");
    require(configured.rows[sums] == configured.rows[left]
                && configured.row_bytes[sums] == configured.row_bytes[right]
                && configured.row_bytes[left] == 4 * configured.rows[right],
            "a product of tiles whose sizes do not match");
}

void emulated_tdpbf16ps(uint8_t sums, uint8_t left, uint8_t right)
{
    require_product(sums, left, right);
    for (int m = 0; m < configured.rows[sums]; m++) {
        const uint16_t *x = (const uint16_t *)tiles[left][m];
        float *sum = (float *)tiles[sums][m];
        for (int n = 0; n < configured.row_bytes[sums] / 4; n++) {
            float even = 0, odd = 0;
            for (int k = 0; k < configured.rows[right]; k++) {
                const uint16_t *y = (const uint16_t *)tiles[right][k] + 2 * n;
                even = without_denormals(fmaf(widened(x[2 * k]), widened(y[0]), even));
                odd = without_denormals(fmaf(widened(x[2 * k + 1]), widened(y[1]), odd));
            }
            float both = without_denormals(even + odd);
            sum[n] = without_denormals(without_denormals(sum[n]) + both);
        }
    }
}

void emulated_tdpbssd(uint8_t sums, uint8_t left, uint8_t right)
{
    require_product(sums, left, right);
    for (int m = 0; m < configured.rows[sums]; m++) {
        const int8_t *x = (const int8_t *)tiles[left][m];
        int32_t *sum = (int32_t *)tiles[sums][m];
        for (int n = 0; n < configured.row_bytes[sums] / 4; n++)
            for (int k = 0; k < configured.rows[right]; k++)
                for (int i = 0; i < 4; i++)
                    sum[n] += x[4 * k + i] * (int8_t)tiles[right][k][4 * n + i];
    }
}

void emulated_tdpbusd(uint8_t sums, uint8_t left, uint8_t right)
{
    require_product(sums, left, right);
    for (int m = 0; m < configured.rows[sums]; m++) {
        int32_t *sum = (int32_t *)tiles[sums][m];
        for (int n = 0; n < configured.row_bytes[sums] / 4; n++)
            for (int k = 0; k < configured.rows[right]; k++)
                for (int i = 0; i < 4; i++)
                    sum[n] += tiles[left][m][4 * k + i] * (int8_t)tiles[right][k][4 * n + i];
    }
}
