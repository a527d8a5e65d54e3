/* The loop over chunks, see h5store/storage/native.py: reads, checks and decodes what is as expected, and stops at the
   first piece that is not. Python then does that one and says what is wrong, so what is read does not depend on
   which of the two ran. Called through ctypes: no Python in here, no state, and the GIL is not held. */

#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Samples from this size on are read straight to their rows; more of them in one call than this are rare. */
#define SPREAD 16384
#define MOST_ROWS 64

/* As native.Job. The functions are those that Python uses, of xxHash and of c-blosc. */
typedef struct {
    uint64_t (*xxh3)(const void *, size_t);
    void *(*begin)(void);
    int (*reset)(void *);
    int (*update)(void *, const void *, size_t);
    uint64_t (*digest)(const void *);
    int (*end)(void *);
    int (*decompress)(const void *, void *, size_t, int);
    int (*getitem)(const void *, int, int, void *);
    int (*lz4)(const char *, char *, int, int);
    int64_t row;    /* bytes of a sample */
    int64_t nbytes; /* of a decoded chunk */
    int64_t few;    /* up to so many samples of a chunk are decoded one by one */
    int64_t verify, blosc, alone;
} Job;

/* Samples start..stop of a chunk, or pick[start..stop] of it, to the rows from `at` on, or to[at..]. */
typedef struct {
    uint64_t chunk, start, stop, at, offset, size, sum;
} Piece;

static uint32_t word(const uint8_t *bytes) {
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static int64_t sample_of(const Piece *p, const int64_t *pick, int64_t j) {
    return pick ? pick[p->start + j] : (int64_t)p->start + j;
}

static int64_t row_of(const Piece *p, const int64_t *to, int64_t j) {
    return to ? to[p->at + j] : (int64_t)p->at + j;
}

/* Whether the header of a Blosc chunk agrees with what is known of it; its layout is described in blosc.py. */
static int sound(const Job *job, const uint8_t *stored, int64_t size) {
    if (size < 16 || stored[0] < 1 || stored[0] > 2 || !stored[3] || word(stored + 4) != job->nbytes
            || word(stored + 12) != size)
        return 0;
    int64_t block = word(stored + 8);
    if (stored[2] & 2) /* stored as it is */
        return block && size == 16 + job->nbytes;
    return block && 16 + 4 * ((job->nbytes + block - 1) / block) <= size; /* the starts of the blocks follow */
}

/* Decode samples that are LZ4 blocks, not shuffled, straight to their rows; 0 for anything else. */
static int blocks(const Job *job, const Piece *p, const int64_t *pick, const int64_t *to, uint8_t *out,
                  const uint8_t *stored, int64_t size) {
    int64_t row = job->row, count = p->stop - p->start;
    if (stored[2] & 7 || !(stored[2] & 16) || stored[2] >> 5 != 1 || word(stored + 8) != row
            || 16 + 4 * (job->nbytes / row) > size)
        return 0;
    for (int64_t j = 0; j < count; j++) {
        int64_t r = row_of(p, to, j);
        if (r < 0)
            continue;
        int64_t first = (int32_t)word(stored + 16 + 4 * sample_of(p, pick, j));
        if (first < 16 || first > size - 4)
            return 0;
        int64_t length = (int32_t)word(stored + first);
        if (length <= 0 || length > row || length > size - 4 - first)
            return 0;
        if (length == row) /* a block that did not shrink is stored as it is */
            memcpy(out + r * row, stored + first + 4, row);
        else if (job->lz4((const char *)stored + first + 4, (char *)out + r * row, length, row) != row)
            return 0;
    }
    return 1;
}

/* Decode samples one by one, each to its row: for those picked here and there. Of a run, each would decode its
   neighbours again. */
static int items(const Job *job, const Piece *p, const int64_t *pick, const int64_t *to, uint8_t *out,
                 const uint8_t *stored) {
    int64_t count = p->stop - p->start, each = job->row / stored[3];
    for (int64_t j = 0; j < count; j++) {
        int64_t r = row_of(p, to, j);
        if (r >= 0 && job->getitem(stored, sample_of(p, pick, j) * each, each, out + r * job->row) != job->row)
            return 0;
    }
    return 1;
}

static void rows(const Job *job, const Piece *p, const int64_t *pick, const int64_t *to, uint8_t *out,
                 const uint8_t *chunk) {
    int64_t row = job->row, count = p->stop - p->start;
    if (!pick && !to) {
        memcpy(out + p->at * row, chunk + p->start * row, count * row);
        return;
    }
    for (int64_t j = 0; j < count; j++) {
        int64_t r = row_of(p, to, j);
        if (r >= 0)
            memcpy(out + r * row, chunk + sample_of(p, pick, j) * row, row);
    }
}

/* Read a chunk stored plainly to its samples' rows, and check it; 0 for anything else. */
static int spread(const Job *job, int fd, const Piece *p, const int64_t *to, uint8_t *out, void *sum) {
    struct iovec places[MOST_ROWS];
    int64_t count = p->stop - p->start, row = job->row;
    for (int64_t j = 0; j < count; j++) {
        if (to[p->at + j] < 0)
            return 0;
        places[j].iov_base = out + to[p->at + j] * row;
        places[j].iov_len = row;
    }
    if (preadv(fd, places, count, p->offset) != job->nbytes)
        return 0;
    if (!job->verify)
        return 1;
    job->reset(sum);
    for (int64_t j = 0; j < count; j++)
        job->update(sum, places[j].iov_base, row);
    return job->digest(sum) == p->sum;
}

static int64_t copy(const Job *job, int fd, int64_t n, const Piece *pieces, const int64_t *pick, const int64_t *to,
                    uint8_t *out, uint8_t *stored, int64_t capacity, uint8_t *scratch, void *sum) {
    int64_t nbytes = job->nbytes, per = nbytes / job->row, have = -1;
    for (int64_t i = 0; i < n; i++) {
        const Piece *p = pieces + i;
        int64_t size = p->size, count = p->stop - p->start;
        uint8_t *straight = count == per && !pick && !to ? out + p->at * job->row : 0;
        if (straight || have != (int64_t)p->chunk) {
            uint8_t *decoded = straight ? straight : scratch, *where = job->blosc ? stored : decoded;
            have = -1;
            if (size > capacity || (!job->blosc && size != nbytes))
                return i;
            if (sum && count == per && !straight && spread(job, fd, p, to, out, sum))
                continue;
            if (pread(fd, where, size, p->offset) != size || (job->verify && job->xxh3(where, size) != p->sum))
                return i;
            if (job->blosc) {
                if (!sound(job, stored, size))
                    return i;
                if (job->alone && blocks(job, p, pick, to, out, stored, size))
                    continue;
                if (pick && count <= job->few && job->row % stored[3] == 0) {
                    if (!items(job, p, pick, to, out, stored))
                        return i;
                    continue;
                }
                if (job->decompress(stored, decoded, nbytes, 1) != nbytes)
                    return i;
            }
            if (straight)
                continue;
            have = p->chunk;
        }
        rows(job, p, pick, to, out, scratch);
    }
    return n;
}

/* How many of the `n` pieces were done. `stored` has room for `capacity` bytes, `scratch` for a decoded chunk; `pick`
   and `to` may be null; a row of -1 is left out. */
int64_t h5store_copy(const Job *job, int fd, int64_t n, const Piece *pieces, const int64_t *pick, const int64_t *to,
                     uint8_t *out, uint8_t *stored, int64_t capacity, uint8_t *scratch) {
    int wide = !job->blosc && to && !pick && job->row >= SPREAD && job->nbytes <= MOST_ROWS * job->row;
    void *sum = wide ? job->begin() : 0;
    int64_t done = copy(job, fd, n, pieces, pick, to, out, stored, capacity, scratch, sum);
    if (sum)
        job->end(sum);
    return done;
}
