/* Tokens from a state of a pushdown machine: a walk of a vocabulary's trie (guides/json_schema/walker.py, which fills the tables).

   A walk goes on as far as the tables tell, and lists what they lack; it is resumed when that was filled in. It makes a mask, or
   lists where tokens end. */
#include <stdint.h>
#include <string.h>

enum { DEAD, UNKNOWN, ASKED };        /* entries of `edges`; from 3 on these are edges */
enum { TARGET, OUTCOME, AFTER, EDGE }; /* of an edge: the state, or 0 and the outcome; what is put on the stack, or 0 */
enum { NODE, NEXT, WORD, MARKS, PASSES, ENDS, RECORD }; /* of tokens within a string, below a node */

enum { HEADS = 256 }; /* a power of two */
enum { WORDS, LOW, HIGH, DEPTH, BESIDE, CLOSING, LISTED };
enum { BYTES = 256 }; /* where `byte` is more, a closing quote: of which of the texts listed */

/* `state` is ~outcome where a value is left; `byte` is to be read next at `node`, or was read last where it is -1. */
typedef struct { int32_t node, state, frame, byte; } Item;

/* A node: where its children are, -1 of them where these are not known; how many tokens end there, and the one, or where they are. */
typedef struct { int32_t first, count, tokens, token; } Node;

typedef struct {
  const Node *node;
  const int32_t *byte, *child, *token;
  const uint32_t *words;
  int32_t *edges;                   /* [rows, 256] */
  const int32_t *row, *ends;        /* of each state: its row of edges, -1 for none; 1 + the outcome that it may end with, or 0 */
  const int32_t *within;            /* of each state without a row, which is in a string: its first record, 0 for none yet */
  const int32_t *listed;            /* [states, LISTED]: the texts beside it, words -1 for none, the state off their paths, and
                                       where in `closing` the edge of the quote behind each is */
  int32_t *closing;
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
  const Node *here = w->node + node;
  const int32_t *token = here->tokens == 1 ? &here->token : w->token + here->token;
  for (int i = 0; i < here->tokens; i++) w->mask[token[i] >> 5] |= 1u << (token[i] & 31);
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
  else if (w->node[node].tokens) end(w, node, state, frame);
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
  int32_t *edge = byte < BYTES ? w->edges + BYTES * w->row[state] + byte : w->closing + w->listed[LISTED * state + CLOSING] + byte - BYTES;
  int number = *edge;
  if (number == UNKNOWN) *edge = ASKED;
  if (number == UNKNOWN || number == ASKED) miss(w, node, state, frame, byte, number == UNKNOWN);
  else if (number != DEAD) follow(w, node, number, frame);
  else if (byte < BYTES && w->ends[state] && frame) leave(w, node, w->ends[state] - 1, frame, byte);
}

static int below(const Walk *w, int node, int byte) {
  int low = w->node[node].first, high = low + w->node[node].count - 1;
  while (low < high) {
    int middle = (low + high) / 2;
    if (w->byte[middle] < byte) low = middle + 1; else high = middle;
  }
  return low == high && w->byte[low] == byte ? w->child[low] : -1;
}

/* Return whether a token ends a listed text, or goes on behind it. */
static int closes(const Walk *w, int node, const int32_t *list) {
  for (int i = list[LOW]; i < list[HIGH]; i++) {
    const char *text = w->text[list[WORDS]] + w->offset[list[WORDS]][i] + list[DEPTH];
    for (int at = below(w, node, *text); at >= 0; at = below(w, at, *++text))
      if (*text == '"') return 1;
  }
  return 0;
}

/* Mark the beginnings of listed texts, and follow the edges of the quotes behind them. */
static void spell(Walk *w, int node, int state, int frame) {
  const int32_t *list = w->listed + LISTED * state;
  for (int i = list[LOW]; i < list[HIGH]; i++) {
    const char *text = w->text[list[WORDS]] + w->offset[list[WORDS]][i] + list[DEPTH];
    for (int at = below(w, node, *text); at >= 0; at = *text == '"' ? -1 : below(w, at, *++text))
      if (*text == '"') step(w, at, state, frame, BYTES + i - list[LOW]);
      else mark(w, at);
  }
}

static void expand(Walk *w, int node, int state, int frame) {
  const Node *here = w->node + node;
  if (!here->count) return;
  if (here->count < 0) { miss(w, node, state, frame, -1, 1); return; }
  if (w->row[state] >= 0) {
    const int32_t *row = w->edges + 256 * w->row[state];
    for (int i = here->first; i < here->first + here->count; i++)
      if (row[w->byte[i]] != DEAD || w->ends[state]) step(w, w->child[i], state, frame, w->byte[i]);
    return;
  }
  int at = w->within[state];
  while (at && w->record[RECORD * at + NODE] != node) at = w->record[RECORD * at + NEXT];
  const int32_t *list = w->listed + LISTED * state;
  if (!at && !w->reached && list[WORDS] >= 0) {
    if (!list[BESIDE]) { spell(w, node, state, frame); return; }
    if (!closes(w, node, list)) { expand(w, node, list[BESIDE], frame); return; }
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

/* The trie, and the steps of a machine as a table, [places, 256]: the place behind each byte, 0 for none, -1 where it is not known. */
typedef struct {
  const int32_t *first;              /* [nodes + 1]: the first child of each */
  const uint8_t *byte, *is_end;
  const int32_t *after;
  int32_t *read, *unread, *reached;  /* nodes, each with the place above it: to be read, and those whose step is not known; nodes
                                        where tokens end, each with the place there */
  int32_t reading, lacking, ending;
} Steps;

static void tread(Steps *s, int node, int above) {
  int place = s->after[256 * above + s->byte[node]];
  if (place < 0) s->unread[2 * s->lacking] = node, s->unread[2 * s->lacking++ + 1] = above;
  if (place <= 0) return;
  if (s->is_end[node]) s->reached[2 * s->ending] = node, s->reached[2 * s->ending++ + 1] = place;
  for (int child = s->first[node]; child < s->first[node + 1]; child++) tread(s, child, place);
}

/* Read on as far as steps are known. */
void read_steps(Steps *s) {
  s->lacking = 0;
  for (int i = 0; i < s->reading; i++) tread(s, s->read[2 * i], s->read[2 * i + 1]);
}

/* Automata over bytes that run side by side below nodes of the trie: tokens that stay in a string, and nodes at its end.

   A state is a row and, in its lower bits, a place in a graph that reads a character; 0 is dead. */
typedef struct {
  const int32_t *rows, *column, *place; /* [rows, columns], [places, 256] twice */
  const uint8_t *alive, *ends, *begins; /* [rows, places], and by row alone, which holds at `root` */
  const uint8_t *meets;                 /* [kinds, columns]: whether characters of a kind have a column */
  int32_t height, columns, places, bits, root, start;
  int32_t least, most;                  /* characters of a member */
} Automaton;

enum { ALONGSIDE = 12, FIELDS = ALONGSIDE + 2, MOST_GROUPS = 1 << 12, PARTS = 5 };

/* The trie, or what of it has tokens that are not of a kind: nodes level by level, `[nodes + 1]` the first child of each. */
typedef struct {
  const int32_t *first, *token, *node; /* -1 for no token, -2 for several; the node of the whole trie */
  const uint8_t *byte;
  const uint32_t **words;              /* by number of characters: the mask of the tokens of the kind that have at most so many */
  int32_t kind, longest;
} Part;

typedef struct {
  Part part[PARTS];                                 /* the first is the whole trie */
  const Walk *walk;
  int32_t *node, *group, *groups, *lengths, *level; /* what a spread finds: nodes and the group of each; [groups, FIELDS]: whether
                                                       it is an end, characters, states; how many are before each group */
  int32_t *waiting;
  uint8_t *seen;                                    /* [rows] of an automaton, twice */
  int32_t *vector, *after;                          /* [MOST_GROUPS, ALONGSIDE]: states side by side; [MOST_GROUPS, 256]: behind a
                                                       byte of those, 0 until it is read, else 1 + what is read and which */
  int32_t most, widest;                             /* nodes that are found, and those of a level */
} Forest;

typedef struct {
  const Forest *forest;
  const Automaton *automata;
  int32_t alongside, count, made, counted, full, slots[2 * MOST_GROUPS];
  uint32_t *mask;
  int32_t vectors;                                  /* -1 where states are not told apart by them */
} Spread;

static void emit(Spread *s, int node, int end, int characters, const int32_t *states) {
  const Forest *f = s->forest;
  if (s->full |= s->count == f->most) return;
  int32_t key[FIELDS] = {end, s->counted ? characters : 0};
  memcpy(key + 2, states, s->alongside * sizeof(int32_t));
  uint32_t hash = 0;
  for (int i = 0; i < s->alongside + 2; i++) hash = (hash ^ (uint32_t)key[i]) * 0x9E3779B1u;
  for (hash >>= 19;; hash = (hash + 1) % (2 * MOST_GROUPS)) {
    if (!s->slots[hash]) {
      if (s->made == MOST_GROUPS) { s->full = 1; return; }
      memcpy(f->groups + FIELDS * s->made, key, sizeof key);
      s->slots[hash] = ++s->made;
    }
    if (!memcmp(f->groups + FIELDS * (s->slots[hash] - 1), key, sizeof key)) break;
  }
  f->node[s->count] = node;
  f->group[s->count++] = s->slots[hash] - 1;
}

enum { DIES, STAYS, COMPLETES, CLOSES };

/* Read a byte behind so many characters; where a member goes on, or is closed, write the state. */
static inline int read_byte(const Automaton *a, int32_t *state, int byte, int characters) {
  int at = 256 * (*state & ((1 << a->bits) - 1)) + byte;
  int row = a->rows[a->columns * (*state >> a->bits) + a->column[at]], place = a->place[at];
  if (!a->alive[a->places * row + place]) return DIES;
  *state = row << a->bits | place;
  if (place == a->root && a->ends[row]) return characters < a->least ? DIES : CLOSES;
  if (characters >= a->most) return DIES; /* one more is begun */
  return place == a->root && a->begins[row] ? COMPLETES : STAYS;
}

/* Read the children of a node; where tokens stay, mark them, or emit the node; return how many of `next` were written. */
static int read_children(Spread *s, const Part *part, const int32_t *item, int32_t *next) {
  int n = s->alongside, written = 0, characters = item[1];
  for (int child = part->first[item[0]]; child < part->first[item[0] + 1]; child++) {
    int32_t behind[ALONGSIDE] = {0}, *after = next + 2;
    int closing = -1, reads = DIES;
    for (int i = 0; i < n; i++) {
      if (!(after[i] = item[2 + i])) continue;
      int how = read_byte(s->automata + i, after + i, part->byte[child], characters);
      if (how == CLOSES) behind[i] = after[i], closing = closing < 0 ? i : closing;
      if (how == DIES) after[i] = 0;
      if (how > reads) reads = how;
    }
    if (reads == DIES) continue;
    if (closing >= 0 && !s->mask) emit(s, part->node[child], 1, characters, behind);
    else if (closing >= 0) {
      if (s->count == s->forest->most) { s->full = 1; return 0; }
      s->forest->node[s->count] = part->node[child];
      s->forest->group[s->count++] = closing;
    }
    if (closing >= 0) continue;
    next[0] = child, next[1] = characters + (reads == COMPLETES);
    int token = part->token[child];
    if (token != -1 && !s->mask) emit(s, part->node[child], 0, next[1], after);
    else if (token >= 0) s->mask[token >> 5] |= 1u << (token & 31);
    else if (token == -2) mark((Walk *)s->forest->walk, part->node[child]);
    if (part->first[child] < part->first[child + 1]) next += n + 2, written++;
  }
  return written;
}

/* The number of states side by side. */
static int vector_of(Spread *s, const int32_t *states) {
  const Forest *f = s->forest;
  uint32_t hash = 0;
  for (int i = 0; i < s->alongside; i++) hash = (hash ^ (uint32_t)states[i]) * 0x9E3779B1u;
  for (hash >>= 19;; hash = (hash + 1) % (2 * MOST_GROUPS)) {
    if (!s->slots[hash]) {
      if (s->vectors == MOST_GROUPS) { s->full = 1; return 0; }
      memcpy(f->vector + ALONGSIDE * s->vectors, states, s->alongside * sizeof(int32_t));
      memset(f->after + 256 * s->vectors, 0, 256 * sizeof(int32_t));
      s->slots[hash] = ++s->vectors;
    }
    if (!memcmp(f->vector + ALONGSIDE * (s->slots[hash] - 1), states, s->alongside * sizeof(int32_t))) return s->slots[hash] - 1;
  }
}

/* Read a byte in states side by side, once of each: they are as one automaton where the number of characters does not matter. */
static int read_vector(Spread *s, int32_t *vector, int byte) {
  int32_t *known = s->forest->after + 256 * *vector + byte;
  if (!*known) {
    int32_t after[ALONGSIDE];
    int reads = DIES, first = -1;
    for (int i = 0; i < s->alongside; i++) {
      after[i] = s->forest->vector[ALONGSIDE * *vector + i];
      int how = after[i] ? read_byte(s->automata + i, after + i, byte, 0) : DIES;
      if (how == DIES) after[i] = 0;
      if (how == CLOSES && first < 0) first = i;
      if (how > reads) reads = how;
    }
    int behind = reads == DIES ? 0 : reads == CLOSES ? first : vector_of(s, after);
    *known = 1 + (behind << 2 | reads);
  }
  *vector = (*known - 1) >> 2;
  return (*known - 1) & 3;
}

/* The same of one automaton, or states side by side as one, tokens of which are marked: depth first, which writes no levels. */
static void mark_below(Spread *s, const Part *part, int node, int characters, int32_t state) {
  int single = s->vectors < 0, end = part->first[node + 1];
  for (int child = part->first[node]; child < end && !s->full; child++) {
    int32_t after = state;
    int byte = part->byte[child];
    int how = single ? read_byte(s->automata, &after, byte, characters) : read_vector(s, &after, byte);
    if (how == DIES) continue;
    if (how == CLOSES) {
      if (s->full |= s->count == s->forest->most) return;
      s->forest->node[s->count] = part->node[child];
      s->forest->group[s->count++] = single ? 0 : after;
      continue;
    }
    int token = part->token[child];
    if (token >= 0) s->mask[token >> 5] |= 1u << (token & 31);
    else if (token == -2) mark((Walk *)s->forest->walk, part->node[child]);
    if (part->first[child] < part->first[child + 1]) mark_below(s, part, child, characters + (how == COMPLETES), after);
  }
}

/* Read the trie below some nodes; where states are not as one, level by level: what is read lies in the order of the memory. */
static int descend(Spread *s, const Part *part, const int64_t *nodes, int count) {
  const Forest *f = s->forest;
  int as_one = s->mask && (s->alongside == 1 || s->vectors >= 0), width = s->alongside + 2;
  int32_t starts[ALONGSIDE], *here = f->level, *next = here + (int64_t)width * f->widest;
  for (int i = 0; i < s->alongside; i++) starts[i] = s->automata[i].start;
  if (s->mask && s->vectors >= 0) starts[0] = vector_of(s, starts);
  for (int k = 0; k < count && as_one; k++) mark_below(s, part, (int)nodes[k], 0, starts[0]);
  if (as_one) count = 0;
  if (count > f->widest) return -1;
  for (int k = 0; k < count; k++) {
    here[width * k] = (int32_t)nodes[k], here[width * k + 1] = 0;
    memcpy(here + width * k + 2, starts, (width - 2) * sizeof(int32_t));
  }
  while (count && !s->full) {
    int made = 0;
    for (int k = 0; k < count && !s->full; k++) {
      int node = here[width * k];
      if (made > f->widest - part->first[node + 1] + part->first[node]) return -1;
      made += read_children(s, part, here + width * k, next + width * made);
    }
    int32_t *other = here;
    here = next, next = other, count = made;
  }
  if (s->full) return -1;
  /* Sort by groups. */
  int32_t *first = f->lengths, *sorted = f->level;
  memset(first, 0, (s->made + 1) * sizeof(int32_t));
  for (int i = 0; i < s->count; i++) first[f->group[i] + 1]++;
  for (int i = 0; i < s->made; i++) first[i + 1] += first[i];
  if (s->made == 1) return 1;
  memset(s->slots, 0, sizeof s->slots);
  for (int i = 0; i < s->count; i++) sorted[first[f->group[i]] + s->slots[f->group[i]]++] = f->node[i];
  memcpy(f->node, sorted, s->count * sizeof(int32_t));
  return s->made;
}

/* Tell the nodes below some apart by whether they are ends, by states and, where `counted`, characters; return the number of
   groups, or -1 where these or nodes are too many. */
int spread(const Forest *f, const Automaton *automata, int alongside, const int64_t *nodes, int count, int counted) {
  Spread s = {f, automata, alongside, 0, 0, counted, 0, {0}, 0, -1};
  return descend(&s, f->part, nodes, count);
}

/* Whether any text of up to so many characters of a kind is the beginning of a member. */
static int holds(const Forest *f, const Automaton *a, int kind, int longest) {
  const uint8_t *meets = a->meets + a->columns * kind;
  int low = 0, high = 1, start = a->start >> a->bits;
  if ((a->start & ((1 << a->bits) - 1)) != a->root) return 0;
  memset(f->seen, 0, a->height);
  f->waiting[0] = start, f->seen[start] = 1;
  for (; low < high && longest > 0; longest--)
    for (int last = high; low < last; low++)
      for (int i = 0; i < a->columns; i++) {
        int row = a->rows[a->columns * f->waiting[low] + i];
        if (!meets[i] || f->seen[row]) continue;
        if (!a->alive[a->places * row + a->root]) return 0;
        f->waiting[high++] = row, f->seen[row] = 1;
      }
  return 1;
}

/* Mark the tokens below some nodes after which a member of an automaton may come; write the nodes at the end, grouped by the first
   automaton that accepts. Return how many, -1 where they are too many, or -1 - i - PARTS n
   where part i lacks the word of its tokens of at most n characters. */
int mark_within(const Forest *f, const Automaton *automata, int alongside, const int64_t *nodes, int count, int kinds, uint32_t *mask) {
  Spread s = {f, automata, alongside, 0, alongside, 0, 0, {0}, mask, 0};
  const Part *part = f->part;
  ((Walk *)f->walk)->mask = mask;
  for (int i = 1; i < PARTS && kinds && part == f->part; i++)
    for (const Automaton *a = automata; a < automata + alongside && part == f->part; a++) {
      int all = f->part[i].longest, longest = all < a->most ? all : a->most;
      if (longest < all && alongside > 1) continue; /* longer ones may be others' */
      if (!holds(f, a, f->part[i].kind, longest)) continue;
      if (!f->part[i].words[longest]) return -1 - i - PARTS * longest;
      part = f->part + i;
      memcpy(mask, part->words[longest], 4 * (size_t)f->walk->width);
    }
  if (part == f->part) memset(mask, 0, 4 * (size_t)f->walk->width);
  for (int i = 0; i < alongside; i++) if (automata[i].least || automata[i].most < INT32_MAX) s.vectors = -1;
  int found = descend(&s, part, nodes, count);
  if (found < 0 && s.vectors >= 0) { /* too many of them, it may be */
    s.vectors = -1, s.count = s.full = 0;
    found = descend(&s, part, nodes, count);
  }
  return found < 0 ? -1 : s.count;
}

/* The checksum of the source that this was built of, which the build gives: a library of another source is not used. */
uint32_t source(void) { return SOURCE; }
