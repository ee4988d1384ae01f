"""What becomes of each keyword of a JSON schema on the road through outlines_core."""

from __future__ import annotations

from .patterns import FORMATS

KEYWORDS = {
    "type": "right; without it the types that the other keywords speak of, any JSON if they speak of none",
    "enum": "right: the values that fit their siblings, refused where outlines_core misspells a number",
    "const": "as `enum`",
    "properties": "right: these keys in this order and no others, although the standard allows others",
    "required": "right; a key that is not declared is written after those that are",
    "additionalProperties": "right; beside declared keys there are no others",
    "patternProperties": "warned of where keys are free, and where it matches a declared key",
    "propertyNames": "warned of where keys are free, and where a declared key does not fit",
    "minProperties": "right up to 1 and where the required keys are as many; else warned of",
    "maxProperties": "right if 0 and where the declared keys are no more; else warned of",
    "dependentRequired": "warned of where it speaks of a declared key, or keys are free",
    "dependentSchemas": "as `dependentRequired`",
    "dependencies": "as `dependentRequired`",
    "unevaluatedProperties": "right beside declared keys; else warned of",
    "items": "right",
    "prefixItems": "right: so many items, and more only where `minItems` asks for them",
    "additionalItems": "right, beside a list of `items`",
    "minItems": "right",
    "maxItems": "right",
    "uniqueItems": "warned of where there may be two items",
    "contains": "warned of",
    "minContains": "warned of with `contains`",
    "maxContains": "warned of with `contains`",
    "unevaluatedItems": "right beside `items` or `prefixItems`; else warned of",
    "minLength": "right; 1 gives way to a pattern that says as much",
    "maxLength": "right; warned of beside a known `format`",
    "pattern": "right: the whole string, without look-around; warned of beside a length",
    "format": f"right: {', '.join(FORMATS)}; warned of: all others, and beside a length from 2 or a pattern",
    "minimum": "right for an integer with both bounds, at most 256 values apart; else warned of",
    "maximum": "as `minimum`",
    "exclusiveMinimum": "as `minimum`",
    "exclusiveMaximum": "as `minimum`",
    "multipleOf": "as `minimum`",
    "minDigits": "outlines_core's own, as it reads it; so `maxDigits`, `minDigitsInteger` and `maxDigitsInteger`",
    "minDigitsFraction": "refused: it allows `1.`; so `maxDigitsFraction`, `minDigitsExponent` and `maxDigitsExponent`",
    "allOf": "right: merged; refused where items are listed by place in one part of several that speak of items",
    "anyOf": "right, with its siblings",
    "oneOf": "right where types, values or a required key tell the alternatives apart; else read as `anyOf` and warned of",
    "$ref": "right, inside the document; one that leads to itself is followed 4 levels deep; others are refused",
    "$dynamicRef": "refused; so `$recursiveRef`",
    "not": "warned of",
    "if": "warned of with `then` or `else`",
}
"""What becomes of each keyword. All others are annotations, which allow and forbid nothing."""

DIGITS = ("minDigits", "maxDigits", "minDigitsInteger", "maxDigitsInteger")
REFUSED = {
    f"{end}Digits{part}": "allows `1.`, which is no JSON" for end in ("min", "max") for part in ("Fraction", "Exponent")
}
REFUSED |= dict.fromkeys(("$dynamicRef", "$recursiveRef"), "depends on who refers to it")

TYPES = {
    "object": "properties required additionalProperties patternProperties propertyNames minProperties maxProperties "
    "dependentRequired dependentSchemas dependencies unevaluatedProperties",
    "array": "items prefixItems additionalItems minItems maxItems uniqueItems contains unevaluatedItems",
    "string": "minLength maxLength pattern format",
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
    "integer": "",
    "boolean": "",
    "null": "",
}
"""The types, and the keywords that speak of each."""

MEANT = {*KEYWORDS, *DIGITS, *REFUSED, "then", "else"}
