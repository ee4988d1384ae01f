(** What each theorem rests on. *)

From Phi Require Import tree doob thinning distance residual drafts counterexamples.

Print Assumptions doob_identity.
Print Assumptions weighted_mean.
Print Assumptions mean_weight.
Print Assumptions thinning.
Print Assumptions step_distribution.
Print Assumptions accepted.
Print Assumptions returned_conditioned.
Print Assumptions launch_order.
Print Assumptions residual.
Print Assumptions unbiased.
Print Assumptions tv_overlap.
Print Assumptions tv_dominated.
Print Assumptions certificate.
Print Assumptions a_priori.
Print Assumptions verified.
Print Assumptions residual_sum.
Print Assumptions the_coin_is_needed.
Print Assumptions launch_order_is_needed.
