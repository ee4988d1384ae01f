/* The mask of a state of a pushdown machine: a walk of a vocabulary's trie (guides/json_schema/masks.py, which fills the tables).

   A walk goes on as far as the tables tell, and lists what they lack; it is resumed when that was filled in. */
#include <stdint.h>
#include <string.h>

enum { DEAD, UNKNOWN };               /* entries of `edges`; from 2 on these are edges */
enum { TARGET, OUTCOME, AFTER, EDGE }; /* of an edge: the state, or 0 and the outcome; what is put on the stack, or 0 */
enum { NODE, NEXT, WORD, MARKS, PASSES, ENDS, RECORD }; /* of tokens within a string or blanks, below a node */

/* `state` is ~outcome where a value is left; `byte` is to be read next at `node`, or was read last where it is -1. */
typedef struct { int32_t node, state, frame, byte; } Item;

typedef struct {
  const int32_t *first, *count, *byte, *child; /* of each node: its children, -1 of them where these are not known */
  const int32_t *token_first, *token_count, *token;
  const uint32_t *words;
  const int32_t *edges;             /* [states, 256] */
  const int32_t *ends, *within;     /* of each state: 1 + the outcome that it may end with; its first record, -1 for none yet, 0 */
  const int32_t *edge, *record, *part;
  const int32_t *follow, *behind;   /* of each `after`: its place in `behind`, where the states are, 0 for those not made */
  int32_t *frame;                   /* [frames, 2]: `after`, and the frame below */
  Item *missed;
  uint32_t *mask;
  int32_t width, frames, most_frames, missing, most_missing, full;
} Walk;

static void expand(Walk *w, int node, int state, int frame);

static void miss(Walk *w, int node, int state, int frame, int byte) {
  if (w->missing == w->most_missing) { w->full = 1; return; }
  w->missed[w->missing++] = (Item){node, state, frame, byte};
}

static void mark(Walk *w, int node) {
  const int32_t *token = w->token + w->token_first[node];
  for (int i = 0; i < w->token_count[node]; i++) w->mask[token[i] >> 5] |= 1u << (token[i] & 31);
}

static void step(Walk *w, int node, int state, int frame, int byte);

static void leave(Walk *w, int node, int outcome, int frame, int byte) {
  int state = w->behind[w->follow[w->frame[2 * frame]] + outcome];
  if (!state) { miss(w, node, ~outcome, frame, byte); return; }
  if (byte >= 0) { step(w, node, state, w->frame[2 * frame + 1], byte); return; }
  mark(w, node);
  expand(w, node, state, w->frame[2 * frame + 1]);
}

static void follow(Walk *w, int node, int number, int frame) {
  const int32_t *edge = w->edge + EDGE * number;
  if (edge[AFTER]) {
    if (w->frames == w->most_frames) { w->full = 1; return; }
    w->frame[2 * w->frames] = edge[AFTER];
    w->frame[2 * w->frames + 1] = frame;
    frame = w->frames++;
  }
  if (!edge[TARGET]) { leave(w, node, edge[OUTCOME], frame, -1); return; }
  mark(w, node);
  expand(w, node, edge[TARGET], frame);
}

static void step(Walk *w, int node, int state, int frame, int byte) {
  int number = w->edges[256 * state + byte];
  if (number == UNKNOWN) miss(w, node, state, frame, byte);
  else if (number != DEAD) follow(w, node, number, frame);
  else if (w->ends[state] && frame) leave(w, node, w->ends[state] - 1, frame, byte);
}

static void expand(Walk *w, int node, int state, int frame) {
  if (!w->count[node]) return;
  if (w->count[node] < 0) { miss(w, node, state, frame, -1); return; }
  if (!w->within[state]) {
    const int32_t *row = w->edges + 256 * state;
    for (int i = w->first[node]; i < w->first[node] + w->count[node]; i++)
      if (row[w->byte[i]] != DEAD || w->ends[state]) step(w, w->child[i], state, frame, w->byte[i]);
    return;
  }
  int at = w->within[state];
  while (at > 0 && w->record[RECORD * at + NODE] != node) at = w->record[RECORD * at + NEXT];
  if (at <= 0) { miss(w, node, state, frame, -1); return; }
  const int32_t *record = w->record + RECORD * at;
  if (record[WORD] >= 0) {
    const uint32_t *word = w->words + (int64_t)w->width * record[WORD];
    for (int i = 0; i < w->width; i++) w->mask[i] |= word[i];
  }
  for (int i = record[MARKS]; i < record[PASSES]; i++) mark(w, w->part[i]);
  for (int i = record[PASSES]; i < record[ENDS]; i += 2) { /* behind blanks comes a state, behind a string the edge of its quote */
    if (w->part[i + 1] < 0) expand(w, w->part[i], -w->part[i + 1], frame);
    else follow(w, w->part[i], w->part[i + 1], frame);
  }
}

/* Resume what `missed` lists, and list what is lacking now; `frames` are those that were there before the walk. */
int resume(Walk *w) {
  int count = w->missing;
  Item items[count];
  memcpy(items, w->missed, count * sizeof(Item));
  w->missing = 0;
  for (Item *x = items; x < items + count; x++) {
    if (x->state < 0) leave(w, x->node, ~x->state, x->frame, x->byte);
    else if (x->byte >= 0) step(w, x->node, x->state, x->frame, x->byte);
    else expand(w, x->node, x->state, x->frame);
  }
  return w->full ? -1 : w->missing;
}

int walk(Walk *w, int node, int state, int frame) {
  memset(w->mask, 0, 4 * (size_t)w->width);
  w->full = 0;
  w->missing = 1;
  w->missed[0] = (Item){node, state, frame, -1};
  return resume(w);
}

static int below(const Walk *w, int node, int byte) {
  int low = w->first[node], high = low + w->count[node] - 1;
  while (low < high) {
    int middle = (low + high) / 2;
    if (w->byte[middle] < byte) low = middle + 1; else high = middle;
  }
  return low == high && w->byte[low] == byte ? w->child[low] : -1;
}

/* Spell texts that end with quotes from a node on: the nodes on the way where tokens end, and those behind the quotes, or -1. */
int spell(const Walk *w, int node, const uint8_t *text, int size, int32_t *on_the_way, int32_t *closed) {
  int at = node, found = 0;
  for (int i = 0; i < size; i++) {
    if (at >= 0) at = below(w, at, text[i]);
    if (text[i] == '"') { *closed++ = at; at = node; }
    else if (at >= 0 && w->token_count[at]) on_the_way[found++] = at;
  }
  return found;
}
