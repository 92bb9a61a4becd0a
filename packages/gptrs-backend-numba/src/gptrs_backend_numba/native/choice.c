/* A library with code for several kinds of processors: the best that this one can run is taken.
 *
 * Each part is a library by itself, whose names begin with its own; all of them read one file of
 * weights.
 */
#include "@NAME@.h"

#define PARTS(part) @PARTS@

struct table {
  int (*fits)(void);
@FIELDS@
};

#define DECLARE(part) int part##_fits(void); @DECLARATIONS@
PARTS(DECLARE)

#define ROW(part) {part##_fits, @ROW@},
static const struct table tables[] = {PARTS(ROW)};
enum { COUNT = sizeof tables / sizeof *tables };

/* Whoever comes first writes what everybody else would. Where nothing fits the last part, which
 * needs least, says what is missing. */
static const struct table *chosen(void) {
  static const struct table *_Atomic found;
  const struct table *known = found;
  for (int i = 0; !known && i < COUNT; i++)
    if (tables[i].fits() || i == COUNT - 1) known = found = &tables[i];
  return known;
}

@FUNCTIONS@
