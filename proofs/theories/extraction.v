(** The checker of certificates and the step of a sampler, as an OCaml program. Numbers become machine integers, which a certificate never exceeds. *)

From Coq Require Import Extraction ExtrOcamlBasic ExtrOcamlNatInt.
From mathcomp Require Import all_ssreflect.
From Phi Require Import pick lexing grammar certificate.

Extract Inlined Constant ssrnat.leq => "(fun (m : int) n -> m <= n)".
Extract Inlined Constant ssrnat.eqn => "(fun (m : int) n -> m = n)".
Extraction "certificate.ml" check same_lexer good_places good_items good_sample choose.
