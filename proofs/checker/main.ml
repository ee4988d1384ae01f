(* Reads a certificate, in JSON, and has the extracted program check it, or steps of a sampler, and has it make their choices.
   Only the reading is written by hand. *)

open Certificate

type json = Null | Int of int | Text of string | List of json list | Object of (string * json) list

exception Bad of string

let parse text =
  let at = ref 0 and length = String.length text in
  let bad what = raise (Bad (Printf.sprintf "%s at byte %d" what !at)) in
  let peek () = if !at < length then text.[!at] else '\000' in
  let rec skip () = if !at < length && String.contains " \t\r\n" (peek ()) then (incr at; skip ()) in
  let expect c = skip (); if peek () = c then incr at else bad (Printf.sprintf "%C expected" c) in
  let sequence close item =
    skip ();
    if peek () = close then (incr at; [])
    else
      let first = item () in
      let rec more found =
        skip ();
        if peek () = ',' then (incr at; more (item () :: found)) else (expect close; List.rev found)
      in
      more [ first ]
  in
  let string () =
    expect '"';
    let from = !at in
    while !at < length && peek () <> '"' do at := !at + if peek () = '\\' then 2 else 1 done; (* escapes stay as they are *)
    if !at >= length then bad "the end of a string expected";
    incr at;
    String.sub text from (!at - from - 1)
  in
  let rec value () =
    skip ();
    match peek () with
    | '[' -> incr at; List (sequence ']' value)
    | '{' -> incr at; Object (sequence '}' (fun () -> skip (); let key = string () in expect ':'; (key, value ())))
    | '"' -> Text (string ())
    | 'n' when !at + 4 <= length && String.sub text !at 4 = "null" -> at := !at + 4; Null
    | '0' .. '9' ->
        let from = !at in
        while !at < length && peek () >= '0' && peek () <= '9' do incr at done;
        if !at - from > 18 then bad "a smaller number expected";
        Int (int_of_string (String.sub text from (!at - from)))
    | _ -> bad "a value expected"
  in
  let found = value () in
  skip ();
  if !at < length then bad "the end expected";
  found

let number = function Int n -> n | _ -> raise (Bad "a number expected")
let list item = function List items -> List.rev (List.rev_map item items) | _ -> raise (Bad "a list expected")
let numbers = list number
let bit = function Text t -> fun i -> i < String.length t && t.[i] = '1' | _ -> raise (Bad "a string of bits expected")
let bits = function Text t -> List.init (String.length t) (bit (Text t)) | _ -> raise (Bad "a string of bits expected")
let field name = function
  | Object fields -> (try List.assoc name fields with Not_found -> raise (Bad (name ^ " is missing")))
  | _ -> raise (Bad "an object expected")
let pair first second = function List [ x; y ] -> (first x, second y) | _ -> raise (Bad "a pair expected")
let triple first second third = function
  | List [ x; y; z ] -> ((first x, second y), third z)
  | _ -> raise (Bad "three parts expected")

(* A list as a function of numbers; behind its end it is [default]. *)
let table default item json =
  let values = Array.of_list (list item json) in
  fun i -> if i < Array.length values then values.(i) else default
let count json = List.length (list (fun x -> x) json)

let rec hold = function
  | List [] -> Start
  | List [ Int q ] -> Alone q
  | List [ Int q; word; rest ] -> Holding (q, numbers word, hold rest)
  | _ -> raise (Bad "a state of the transducer expected")

let verdict = function
  | Int place -> Forbidden place
  | List [ text; steps ] -> Allowed (numbers text, numbers steps)
  | _ -> raise (Bad "a verdict expected")

let sample json =
  {
    text = numbers (field "text" json);
    mask = bit (field "mask" json);
    end_verdict = verdict (field "end" json);
    outcomes = list (triple number numbers verdict) (field "outcomes" json);
  }

let artefact json =
  let lexemes = field "lexemes" json and lexer = field "lexer" json in
  let grammar = field "grammar" json and automaton = field "places" json in
  {
    byte_class = numbers (field "byte_class" lexemes);
    rows = list numbers (field "targets" lexemes);
    labels = numbers (field "labels" lexemes);
    first = number (field "start" lexemes);
    column = numbers (field "byte_class" lexer);
    targets = list numbers (field "targets" lexer);
    emits = list numbers (field "emits" lexer);
    words = list numbers (field "words" lexer);
    finals = numbers (field "ends" lexer);
    begin0 = number (field "start" lexer);
    stands = list (list hold) (field "stands_for" lexer);
    ignored = bits (field "ignored" grammar);
    rules = list (pair number numbers) (field "rules" grammar);
    initial = number (field "start" grammar);
    token_count = count (field "tokens" json);
    tokens = table [] numbers (field "tokens" json);
    place_count = count (field "places" automaton);
    places = table ([], None) (pair numbers (function Null -> None | state -> Some (number state))) (field "places" automaton);
    arcs = table [] (list (pair number number)) (field "arcs" automaton);
    lasts = bit (field "lasts" automaton);
    homes = table 0 number (field "homes" automaton);
    items = table [] (list (triple number numbers number)) (field "items" automaton);
    completed = table [] (list (pair number number)) (field "completed" automaton);
    root = number (field "root" automaton);
    samples = list sample (field "samples" json);
  }

let reason a =
  if not (same_lexer a) then "the lexer is not longest match"
  else if not (good_places a) then "the places leave out what the lexer may emit"
  else if not (good_items a) then "the items are not closed under the rules"
  else
    let rec first n = function
      | [] -> "a sample"
      | sm :: more -> if good_sample a sm then first (n + 1) more else Printf.sprintf "the mask of sample %d, counted from 0, is not shown to be exact" n
    in
    first 0 a.samples

let read path =
  let channel = open_in_bin path in
  parse (really_input_string channel (in_channel_length channel))

let certify path =
  let a = artefact (read path) in
  if check a then
    Printf.printf
      "PROVED: the lexer is longest match (certificate.lexer_certified), and %d masks of %d tokens are exact \
       (certificate.mask_certified, certificate.end_certified)\n"
      (List.length a.samples) a.token_count
  else (Printf.printf "REFUSED: %s\n" (reason a); exit 1)

let step json =
  let (coin, quantile), masses = triple number number numbers json in
  match choose masses coin quantile with None -> "-1" | Some i -> string_of_int i

let () =
  try
    match Sys.argv with
    | [| _; path |] -> certify path
    | [| _; "--steps"; path |] -> Printf.printf "[%s]\n" (String.concat ", " (list step (read path)))
    | _ -> prerr_endline "usage: check CERTIFICATE, or check --steps STEPS"; exit 2
  with
  | Bad what -> Printf.eprintf "Give a certificate that outlines-phi verify --certificate wrote. This is none: %s.\n" what; exit 2
  | Sys_error what -> Printf.eprintf "Give a file that can be read. %s.\n" what; exit 2
