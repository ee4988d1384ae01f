"""The grammar of ANSI C (Kernighan and Ritchie, second edition, appendix A.13), as its published yacc version has it."""

ANSI_C = """
Translation_unit: External_declaration | Translation_unit External_declaration
External_declaration: Function_definition | Declaration
Function_definition: Specifiers Declarator Declaration_list Compound | Specifiers Declarator Compound
Function_definition: Declarator Declaration_list Compound | Declarator Compound
Primary: identifier | constant | string | ( Expression )
Postfix: Primary | Postfix [ Expression ] | Postfix ( ) | Postfix ( Arguments ) | Postfix . identifier | Postfix -> identifier
Postfix: Postfix ++ | Postfix --
Arguments: Assignment | Arguments , Assignment
Unary: Postfix | ++ Unary | -- Unary | Unary_operator Cast | sizeof Unary | sizeof ( Type_name )
Unary_operator: & | * | + | - | ~ | !
Cast: Unary | ( Type_name ) Cast
Multiplicative: Cast | Multiplicative * Cast | Multiplicative / Cast | Multiplicative % Cast
Additive: Multiplicative | Additive + Multiplicative | Additive - Multiplicative
Shift: Additive | Shift << Additive | Shift >> Additive
Relational: Shift | Relational < Shift | Relational > Shift | Relational <= Shift | Relational >= Shift
Equality: Relational | Equality == Relational | Equality != Relational
And: Equality | And & Equality
Exclusive_or: And | Exclusive_or ^ And
Inclusive_or: Exclusive_or | Inclusive_or bar Exclusive_or
Logical_and: Inclusive_or | Logical_and && Inclusive_or
Logical_or: Logical_and | Logical_or barbar Logical_and
Conditional: Logical_or | Logical_or ? Expression colon Conditional
Assignment: Conditional | Unary Assignment_operator Assignment
Assignment_operator: = | *= | /= | %= | += | -= | <<= | >>= | &= | ^= | bar=
Expression: Assignment | Expression , Assignment
Constant_expression: Conditional
Declaration: Specifiers ; | Specifiers Init_declarator_list ;
Specifiers: Storage | Storage Specifiers | Type_specifier | Type_specifier Specifiers | Qualifier | Qualifier Specifiers
Init_declarator_list: Init_declarator | Init_declarator_list , Init_declarator
Init_declarator: Declarator | Declarator = Initializer
Storage: typedef | extern | static | auto | register
Type_specifier: void | char | short | int | long | float | double | signed | unsigned | Struct | Enum | type_name
Struct: Struct_or_union identifier { Struct_declarations } | Struct_or_union { Struct_declarations } | Struct_or_union identifier
Struct_or_union: struct | union
Struct_declarations: Struct_declaration | Struct_declarations Struct_declaration
Struct_declaration: Specifier_qualifiers Struct_declarators ;
Specifier_qualifiers: Type_specifier Specifier_qualifiers | Type_specifier | Qualifier Specifier_qualifiers | Qualifier
Struct_declarators: Struct_declarator | Struct_declarators , Struct_declarator
Struct_declarator: Declarator | colon Constant_expression | Declarator colon Constant_expression
Enum: enum { Enumerators } | enum identifier { Enumerators } | enum identifier
Enumerators: Enumerator | Enumerators , Enumerator
Enumerator: identifier | identifier = Constant_expression
Qualifier: const | volatile
Declarator: Pointer Direct | Direct
Direct: identifier | ( Declarator ) | Direct [ Constant_expression ] | Direct [ ]
Direct: Direct ( Parameter_types ) | Direct ( Identifiers ) | Direct ( )
Pointer: * | * Qualifiers | * Pointer | * Qualifiers Pointer
Qualifiers: Qualifier | Qualifiers Qualifier
Parameter_types: Parameters | Parameters , ...
Parameters: Parameter | Parameters , Parameter
Parameter: Specifiers Declarator | Specifiers Abstract | Specifiers
Identifiers: identifier | Identifiers , identifier
Type_name: Specifier_qualifiers | Specifier_qualifiers Abstract
Abstract: Pointer | Direct_abstract | Pointer Direct_abstract
Direct_abstract: ( Abstract ) | [ ] | [ Constant_expression ] | Direct_abstract [ ] | Direct_abstract [ Constant_expression ]
Direct_abstract: ( ) | ( Parameter_types ) | Direct_abstract ( ) | Direct_abstract ( Parameter_types )
Initializer: Assignment | { Initializers } | { Initializers , }
Initializers: Initializer | Initializers , Initializer
Statement: Labeled | Compound | Expression_statement | Selection | Iteration | Jump
Labeled: identifier colon Statement | case Constant_expression colon Statement | default colon Statement
Compound: { } | { Statements } | { Declaration_list } | { Declaration_list Statements }
Declaration_list: Declaration | Declaration_list Declaration
Statements: Statement | Statements Statement
Expression_statement: ; | Expression ;
Selection: if ( Expression ) Statement | if ( Expression ) Statement else Statement | switch ( Expression ) Statement
Iteration: while ( Expression ) Statement | do Statement while ( Expression ) ;
Iteration: for ( Expression_statement Expression_statement ) Statement
Iteration: for ( Expression_statement Expression_statement Expression ) Statement
Jump: goto identifier ; | continue ; | break ; | return ; | return Expression ;
"""
