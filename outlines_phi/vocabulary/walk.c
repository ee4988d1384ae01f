/* Tokens from a state of a pushdown machine: a walk of a vocabulary's trie (guides/json_schema/walker.py, which fills the tables).

   A walk goes on as far as the tables tell, and lists what they lack; it is resumed when that was filled in. It makes a mask, or
   lists where tokens end. */
#include <stdint.h>
#include <string.h>

enum { DEAD, UNKNOWN, ASKED };        /* entries of `edges`; from 3 on these are edges */
enum { TARGET, OUTCOME, AFTER, EDGE }; /* of an edge: the state, or 0 and the outcome; what is put on the stack, or 0 */
enum { NODE, NEXT, WORD, MARKS, PASSES, ENDS, RECORD }; /* of tokens within a string, below a node */

enum { HEADS = 256 }; /* a power of two */
enum { WORDS, LOW, HIGH, DEPTH, BESIDE, LISTED };

/* `state` is ~outcome where a value is left; `byte` is to be read next at `node`, or was read last where it is -1. */
typedef struct { int32_t node, state, frame, byte; } Item;

typedef struct {
  const int32_t *first, *count, *byte, *child; /* of each node: its children, -1 of them where these are not known */
  const int32_t *token_first, *token_count, *token;
  const uint32_t *words;
  int32_t *edges;                   /* [rows, 256] */
  const int32_t *row, *ends;        /* of each state: its row of edges, -1 for none; 1 + the outcome that it may end with, or 0 */
  const int32_t *within;            /* of each state without a row, which is in a string: its first record, 0 for none yet */
  const int32_t *listed;            /* [states, LISTED]: the texts beside it, words -1 for none, and the state off their paths */
  const char **text;                /* of each words: its texts, each with a closing quote */
  const int32_t **offset;           /* and where each begins */
  const int32_t *edge, *record, *part;
  const int32_t *follow;            /* of each `after`: its place in `behind` */
  int32_t *behind;                  /* the states there, 0 for those not made, -1 for those asked for */
  int32_t *frame;                   /* [frames, 2]: `after`, and the frame below */
  Item *missed, *asked;             /* where the walk stopped, and what it lacks there, each once */
  uint32_t *mask;
  int32_t *place, *reached;         /* [placed, 3]: states, or ~record of tokens within a string, the frame, and 1 + the place
                                       before it of the same hash */
                                    /* [ending, 2]: nodes where tokens end, and the place; NULL for a mask instead */
  int32_t width, frames, most_frames, missing, asking, most_missing, placed, ending, most_ending, full;
  int32_t head[HEADS];              /* of each hash: 1 + its last place */
} Walk;

static void expand(Walk *w, int node, int state, int frame);

static void miss(Walk *w, int node, int state, int frame, int byte, int ask) {
  if (w->missing == w->most_missing) { w->full = 1; return; }
  Item item = {node, state, frame, byte};
  w->missed[w->missing++] = item;
  if (ask) w->asked[w->asking++] = item;
}

static void mark(Walk *w, int node) {
  const int32_t *token = w->token + w->token_first[node];
  for (int i = 0; i < w->token_count[node]; i++) w->mask[token[i] >> 5] |= 1u << (token[i] & 31);
}

static int placed(Walk *w, int state, int frame) {
  int32_t *head = w->head + ((31u * (uint32_t)frame + (uint32_t)state) & (HEADS - 1));
  for (int at = *head; at; at = w->place[3 * at - 1])
    if (w->place[3 * at - 3] == state && w->place[3 * at - 2] == frame) return at - 1;
  if (w->placed == w->most_ending) { w->full = 1; return 0; }
  int32_t *place = w->place + 3 * w->placed;
  place[0] = state, place[1] = frame, place[2] = *head;
  *head = ++w->placed;
  return w->placed - 1;
}

static void end(Walk *w, int node, int state, int frame) {
  if (w->ending == w->most_ending) { w->full = 1; return; }
  w->reached[2 * w->ending] = node;
  w->reached[2 * w->ending++ + 1] = placed(w, state, frame);
}

static void arrive(Walk *w, int node, int state, int frame) {
  if (!w->reached) mark(w, node);
  else if (w->token_count[node]) end(w, node, state, frame);
  expand(w, node, state, frame);
}

static void step(Walk *w, int node, int state, int frame, int byte);

static void leave(Walk *w, int node, int outcome, int frame, int byte) {
  int32_t *behind = w->behind + w->follow[w->frame[2 * frame]] + outcome, state = *behind;
  if (state <= 0) { *behind = -1; miss(w, node, ~outcome, frame, byte, !state); return; }
  if (byte >= 0) step(w, node, state, w->frame[2 * frame + 1], byte);
  else arrive(w, node, state, w->frame[2 * frame + 1]);
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
  arrive(w, node, edge[TARGET], frame);
}

static void step(Walk *w, int node, int state, int frame, int byte) {
  int32_t *edges = w->edges + 256 * w->row[state], number = edges[byte];
  if (number == UNKNOWN) edges[byte] = ASKED;
  if (number == UNKNOWN || number == ASKED) miss(w, node, state, frame, byte, number == UNKNOWN);
  else if (number != DEAD) follow(w, node, number, frame);
  else if (w->ends[state] && frame) leave(w, node, w->ends[state] - 1, frame, byte);
}

static int below(const Walk *w, int node, int byte) {
  int low = w->first[node], high = low + w->count[node] - 1;
  while (low < high) {
    int middle = (low + high) / 2;
    if (w->byte[middle] < byte) low = middle + 1; else high = middle;
  }
  return low == high && w->byte[low] == byte ? w->child[low] : -1;
}

/* Mark the beginnings of listed texts, unless those are among all others; return whether a token ends one, or goes on behind it. */
static int closes(Walk *w, int node, const int32_t *list) {
  for (int i = list[LOW]; i < list[HIGH]; i++) {
    const char *text = w->text[list[WORDS]] + w->offset[list[WORDS]][i] + list[DEPTH];
    for (int at = below(w, node, *text); at >= 0; at = below(w, at, *++text)) {
      if (*text == '"') return 1;
      if (!list[BESIDE]) mark(w, at);
    }
  }
  return 0;
}

static void expand(Walk *w, int node, int state, int frame) {
  if (!w->count[node]) return;
  if (w->count[node] < 0) { miss(w, node, state, frame, -1, 1); return; }
  if (w->row[state] >= 0) {
    const int32_t *row = w->edges + 256 * w->row[state];
    for (int i = w->first[node]; i < w->first[node] + w->count[node]; i++)
      if (row[w->byte[i]] != DEAD || w->ends[state]) step(w, w->child[i], state, frame, w->byte[i]);
    return;
  }
  int at = w->within[state];
  while (at && w->record[RECORD * at + NODE] != node) at = w->record[RECORD * at + NEXT];
  const int32_t *list = w->listed + LISTED * state;
  if (!at && !w->reached && list[WORDS] >= 0 && !closes(w, node, list)) {
    if (list[BESIDE]) expand(w, node, list[BESIDE], frame);
    return;
  }
  if (!at) { miss(w, node, state, frame, -1, 1); return; }
  const int32_t *record = w->record + RECORD * at;
  if (w->reached) placed(w, ~at, frame);
  else if (record[WORD] >= 0) {
    const uint32_t *word = w->words + (int64_t)w->width * record[WORD];
    for (int i = 0; i < w->width; i++) w->mask[i] |= word[i];
  }
  for (int i = record[MARKS]; i < record[PASSES] && !w->reached; i++) mark(w, w->part[i]);
  for (int i = record[PASSES]; i < record[ENDS]; i += 2) follow(w, w->part[i], w->part[i + 1], frame); /* the edge of the quote */
}

/* Resume what `missed` lists, and list what is lacking now; `frames` are those that were there before the walk. */
int resume(Walk *w) {
  int count = w->missing;
  Item items[count];
  memcpy(items, w->missed, count * sizeof(Item));
  w->missing = w->asking = 0;
  for (Item *x = items; x < items + count; x++) {
    if (x->state < 0) leave(w, x->node, ~x->state, x->frame, x->byte);
    else if (x->byte >= 0) step(w, x->node, x->state, x->frame, x->byte);
    else expand(w, x->node, x->state, x->frame);
  }
  return w->full ? -1 : w->asking;
}

int walk(Walk *w, int node, int state, int frame) {
  if (w->reached) memset(w->head, 0, sizeof w->head);
  else memset(w->mask, 0, 4 * (size_t)w->width);
  w->full = w->placed = w->ending = 0;
  w->missing = 1;
  w->missed[0] = (Item){node, state, frame, -1};
  return resume(w);
}

/* Automata over bytes that run side by side below nodes of the trie: tokens that stay in a string, and nodes at its end.

   A state is a row and, in its lower bits, a place in a graph that reads a character; 0 is dead. */
typedef struct {
  const int32_t *rows, *column, *place; /* [rows, columns], [places, 256] twice */
  const uint8_t *alive, *ends, *begins; /* [rows, places], and by row alone, which holds at `root` */
  const uint8_t *meets;                 /* [kinds, columns]: whether characters of a kind have a column */
  int32_t columns, places, bits, root, start;
  int32_t least, most;                  /* characters of a member */
} Automaton;

enum { ALONGSIDE = 12, FIELDS = ALONGSIDE + 2, MOST_GROUPS = 1 << 12 };

/* The trie in depth-first order: the entries below a node are behind it, `skip` with its own. */
typedef struct { int32_t skip, step, token, node; } Entry; /* `step`: depth and byte; `token`: -1 for none, -2 for several */

typedef struct {
  const Walk *walk;
  const Automaton *automata;
  int32_t *node, *group, *groups, *levels; /* nodes and the group of each; [groups, FIELDS]: whether it is an end, characters,
                                              states; [depth, automata + 1]: states and characters on the way */
  int32_t alongside, count, room, made, counted, marking, full, slots[2 * MOST_GROUPS];
} Spread;

static void emit(Spread *s, int node, int end, int characters, const int32_t *states, int width) {
  if (s->full |= s->count == s->room) return;
  int32_t key[FIELDS] = {end, characters};
  memcpy(key + 2, states, width * sizeof(int32_t));
  uint32_t hash = 0;
  for (int i = 0; i < width + 2; i++) hash = (hash ^ (uint32_t)key[i]) * 0x9E3779B1u;
  for (hash >>= 19;; hash = (hash + 1) % (2 * MOST_GROUPS)) {
    if (!s->slots[hash]) {
      if (s->made == MOST_GROUPS) { s->full = 1; return; }
      memcpy(s->groups + FIELDS * s->made, key, sizeof key);
      s->slots[hash] = ++s->made;
    }
    if (!memcmp(s->groups + FIELDS * (s->slots[hash] - 1), key, sizeof key)) break;
  }
  s->node[s->count] = node;
  s->group[s->count++] = s->slots[hash] - 1;
}

/* Read a byte: 0 where no member goes on; `characters` are those begun and completed before, and then behind. */
static int32_t read_byte(const Automaton *a, int32_t state, int byte, int characters, int *closing, int *begins) {
  int at = 256 * (state & ((1 << a->bits) - 1)) + byte;
  int row = a->rows[a->columns * (state >> a->bits) + a->column[at]], place = a->place[at], root = place == a->root;
  if (!a->alive[a->places * row + place]) return 0;
  *closing = root && a->ends[row] && characters >= a->least;
  if (root && a->ends[row]) return *closing ? row << a->bits | place : 0;
  int completed = root && a->begins[row];
  if (characters + 1 > a->most) return 0;
  *begins |= completed;
  return row << a->bits | place;
}

static void spread_below(Spread *s, const Entry *entry, const Entry *last, int depth) {
  int n = s->alongside, width = n + 1;
  for (; entry < last && !s->full;) {
    const int32_t *states = s->levels + width * ((entry->step >> 8) - depth - 1);
    int32_t *after = (int32_t *)states + width, behind[ALONGSIDE] = {0};
    int alive = 0, closing = 0, begins = 0, characters = states[n];
    for (int i = 0; i < n; i++) {
      int closes = 0;
      after[i] = states[i] ? read_byte(s->automata + i, states[i], entry->step & 255, characters, &closes, &begins) : 0;
      alive |= after[i];
      if (closes && s->marking && !closing) behind[0] = i; /* the first that is closed */
      else if (closes && !s->marking) behind[i] = after[i];
      closing |= closes;
    }
    if (closing) emit(s, entry->node, 1, s->counted ? characters : 0, behind, s->marking ? 1 : n);
    if (!alive || closing) { entry += entry->skip; continue; }
    after[n] = characters + begins;
    if (s->marking && entry->token >= 0) s->walk->mask[entry->token >> 5] |= 1u << (entry->token & 31);
    else if (s->marking && entry->token == -2) mark((Walk *)s->walk, entry->node);
    else if (entry->token != -1) emit(s, entry->node, 0, s->counted ? after[n] : 0, after, n);
    entry++;
  }
}

/* Spread below `count` entries of the trie; `node`, which has `room`, is sorted by group then; return the number of groups, or -1.
   Where it is `marking`, tokens that stay are marked in the mask instead, and ends are told apart by the automaton alone. */
int spread(const Walk *w, const Automaton *automata, int alongside, const Entry *entries, const int64_t *places, int count,
           int counted, int marking, int room, int32_t *node, int32_t *group, int32_t *groups, int32_t *first, int32_t *levels) {
  Spread s;
  memset(&s, 0, sizeof s);
  s.walk = w; s.automata = automata; s.node = node; s.group = group; s.groups = groups; s.counted = counted;
  s.marking = marking; s.room = room; s.alongside = alongside; s.levels = levels;
  for (int i = 0; i < alongside; i++) levels[i] = automata[i].start;
  levels[alongside] = 0;
  for (int i = 0; i < count; i++) {
    const Entry *top = entries + places[i];
    spread_below(&s, top + 1, top + top->skip, top->step >> 8);
  }
  if (s.full) return -1;
  memset(first, 0, (s.made + 1) * sizeof(int32_t));
  for (int i = 0; i < s.count; i++) first[group[i] + 1]++;
  for (int i = 0; i < s.made; i++) first[i + 1] += first[i];
  int32_t *sorted = group + s.count; /* twice the room */
  memset(s.slots, 0, sizeof s.slots);
  for (int i = 0; i < s.count; i++) sorted[first[group[i]] + s.slots[group[i]]++] = node[i];
  memcpy(node, sorted, s.count * sizeof(int32_t));
  return s.made;
}

/* The layout that this library was built for: one that is older than its caller is not used. */
int layout(void) { return (int)(sizeof(Walk) << 16 | sizeof(Automaton)); }

/* Whether any text of up to `longest` characters of a kind is a beginning of a member; `seen` has a byte for each row. */
int holds(const Automaton *a, int kind, int longest, int32_t *waiting, uint8_t *seen, int rows) {
  const uint8_t *meets = a->meets + a->columns * kind;
  int low = 0, high = 1, start = a->start >> a->bits;
  if ((a->start & ((1 << a->bits) - 1)) != a->root || longest > a->most) return 0;
  memset(seen, 0, rows);
  waiting[0] = start, seen[start] = 1;
  for (; low < high && longest > 0; longest--)
    for (int last = high; low < last; low++)
      for (int i = 0; i < a->columns; i++) {
        int row = a->rows[a->columns * waiting[low] + i];
        if (!meets[i] || seen[row]) continue;
        if (!a->alive[a->places * row + a->root]) return 0;
        waiting[high++] = row, seen[row] = 1;
      }
  return 1;
}
