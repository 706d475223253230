"""Short English words for generated prompts.

No word is part of another, and no pair is part of another pair, so that finding one in
a text is not finding another. Runs without JAX.
"""

NOUNS = tuple("""
    ant ape arm axe bag bar bat bay bed bee bin bow box boy bud bug bun bus cab cap car
    cat cow cub cup day den dog dot ear egg elf elk eye fan fig fin fly fog fox gem gum
    ham hat hen hip hut ice ink ivy jam jar jaw jet job key kid kit lab lap leg lid lip
    log map mat mix mob mop mud mug net nut oak oar oat orb owl pad pan paw pea pen pet
    pie pig pin pit pod pot pub pup rag ram rat rib rim rod rug sea tap tea tie tin toe
    toy tub van vet wax web wig yak zoo
""".split())

ADJECTIVES = tuple("""
    angry basic blue brave brief brown busy calm cheap chief civil clean clear close
    crisp curly dark deep dense dim dirty dizzy dull dusty eager early empty equal exact
    faint fair fancy fast fat few final firm flat fresh full funny glad good grand great
    green grim happy harsh heavy high holy huge humid jolly juicy keen kind large
    late lazy light local long loud lucky mad major merry mild minor misty moist muddy
    naive neat nice noble noisy odd only open pale plain plump polar poor proud pure
    quick quiet rapid rare raw ready real rich ripe rocky rough round royal rude
    rural rusty sad safe salty sandy sharp shiny short shy silly slim slow small smart
    soft solid sour spicy stiff sunny super sweet swift tall tame tidy tiny tired tough
    urban usual vague vast vital warm weak wet white whole wide wild wise young
""".split())

# Adjective and noun, such as 'calm-fox', as RULER joins them.
PAIRS = tuple(f'{adjective}-{noun}' for adjective in ADJECTIVES for noun in NOUNS)
