"""Texts that have no business in a corpus: other languages, and ways to garble a text. Even seeds
and odd seeds draw from different ones.
"""

import random
from typing import Final

FOREIGN: Final = {
    "German": (
        "Am frühen Morgen ging der alte Fischer mit seinem Hund zum Hafen hinunter. Die Boote lagen"
        " noch still im Wasser, und über dem Fluss stand ein dünner Nebel. Er dachte an die Jahre,"
        " in denen er mit seinem Bruder jeden Tag hinausgefahren war. Heute wollte er nur die Netze"
        " flicken und danach auf dem Markt ein Brot und etwas Käse kaufen. Niemand wartete auf ihn,"
        " aber das störte ihn nicht mehr. Als die Sonne endlich über den Dächern erschien, setzte"
        " er sich auf eine Kiste und zündete seine Pfeife an."
    ),
    "French": (
        "Le petit train de la vallée part chaque matin à sept heures et ne revient que le soir. Les"
        " habitants du village le prennent pour aller au marché, où ils vendent des légumes, du"
        " fromage et des fleurs. En hiver, quand la neige couvre les rails, le chauffeur attend que"
        " les hommes du village viennent avec leurs pelles. Personne ne se plaint, car tout le"
        " monde sait que sans ce train la vie serait beaucoup plus difficile. Le dimanche, les"
        " enfants y montent pour le plaisir et regardent les montagnes par la fenêtre."
    ),
    "Russian": (
        "Вечером мы сидели на берегу реки и слушали, как ветер шумит в деревьях. Старый учитель"
        " рассказывал о своей молодости, о далёких городах и о людях, которых он встретил в дороге."
        " Никто не хотел уходить домой, хотя становилось холодно. Потом кто-то принёс чай и хлеб, и"
        " мы долго говорили о книгах, о музыке и о том, что будет завтра. Когда взошла луна, вода"
        " стала совсем светлой."
    ),
    "Dutch": (
        "De bakker op de hoek staat elke dag om vier uur op om het brood te bakken. Zijn vrouw"
        " helpt hem in de winkel en kent bijna alle klanten bij naam. In de zomer zetten zij een"
        " paar tafels buiten, zodat de mensen daar koffie kunnen drinken. De kinderen komen na"
        " school langs en krijgen soms een koekje dat niet mooi genoeg was om te verkopen. Zo gaat"
        " het al dertig jaar, en niemand in de straat zou het anders willen."
    ),
    "Turkish": (
        "Küçük kasabanın ortasında büyük bir çınar ağacı vardır ve yaşlılar her gün onun altında"
        " oturur. Sabahları çay içerler, gazete okurlar ve eski günlerden konuşurlar. Çocuklar"
        " okuldan sonra buraya gelir, top oynar ve bazen yaşlıların hikâyelerini dinler. Kışın hava"
        " soğuk olduğu için kimse dışarıda kalmaz, ama bahar gelince herkes yine aynı yerde"
        " buluşur."
    ),
    "Spanish": (
        "La casa de mi abuela estaba al final de un camino de tierra, entre los olivos y el río."
        " Por las tardes nos sentábamos en el patio y ella nos contaba historias de cuando era niña"
        " y no había luz en el pueblo. Mi hermano siempre se dormía antes del final, pero yo quería"
        " saberlo todo. Ahora la casa está vacía y las ventanas no se abren, aunque a veces vuelvo"
        " para regar las plantas y recordar su voz."
    ),
    "Italian": (
        "Ogni sera il vecchio musicista saliva le scale della torre con il suo violino sotto il"
        " braccio. Da lassù si vedeva tutta la città, con i tetti rossi e le piazze piene di gente."
        " Suonava per un'ora, mai di più, e poi scendeva senza dire una parola. Nessuno sapeva"
        " perché lo facesse, ma tutti aspettavano quel momento della giornata. Una volta, quando"
        " era malato, la città rimase in silenzio e non dormì."
    ),
    "Polish": (
        "W niedzielę cała rodzina spotyka się u babci, która mieszka na skraju lasu. Najpierw"
        " wszyscy jedzą obiad, a potem dzieci idą nad rzekę, żeby łowić ryby. Dziadek opowiada o"
        " czasach, kiedy był młody i pracował na kolei, ale nikt już nie wie, co jest prawdą, a co"
        " nie. Wieczorem siedzą przy ogniu i śpiewają stare piosenki, które znają tylko oni."
    ),
    "Greek": (
        "Το μικρό νησί έχει μόνο ένα λιμάνι και μια παλιά εκκλησία πάνω στον λόφο. Το καλοκαίρι"
        " έρχονται πολλοί άνθρωποι με τα καράβια, αλλά τον χειμώνα μένουν μόνο οι ψαράδες και οι"
        " οικογένειές τους. Κάθε πρωί ο καφετζής ανοίγει το μαγαζί του και περιμένει τους πρώτους"
        " πελάτες, που κάθονται κοντά στο παράθυρο και μιλούν για τον καιρό."
    ),
    "Finnish": (
        "Vanha mies asui yksin pienessä talossa järven rannalla, ja hänen ainoa ystävänsä oli"
        " harmaa kissa. Joka aamu hän keitti kahvia ja katsoi ikkunasta, kun aurinko nousi metsän"
        " takaa. Hän ei enää käynyt kaupungissa, koska siellä oli liian paljon ihmisiä. Kesällä hän"
        " souti järvellä ja kalasti, ja talvella hän luki kirjoja, jotka hänen vaimonsa oli"
        " jättänyt."
    ),
    "Portuguese": (
        "O mercado da praça abre muito cedo, quando ainda está escuro e as ruas estão vazias. Os"
        " homens chegam com os carros cheios de fruta e de peixe, e as mulheres preparam as mesas"
        " para vender. Às oito horas já não há lugar para andar, porque toda a cidade vem comprar o"
        " que precisa para o almoço. Depois do meio-dia tudo fica quieto outra vez, e só os gatos"
        " procuram o que sobrou."
    ),
    "Swedish": (
        "Det var en kall morgon i februari när tåget stannade mitt ute i skogen. Ingen visste vad"
        " som hade hänt, och föraren sade bara att vi måste vänta. En kvinna tog fram en termos med"
        " kaffe och bjöd alla som satt i vagnen. Vi började prata med varandra, och snart kändes"
        " det som om vi hade känt varandra länge. När tåget äntligen gick vidare var det nästan"
        " synd att resan skulle ta slut."
    ),
}
"""Ordinary prose, a paragraph a language."""

_TUNED: Final = ("German", "French", "Russian", "Dutch", "Turkish")
_HELD_OUT: Final = ("Spanish", "Italian", "Polish", "Greek", "Finnish", "Portuguese", "Swedish")


def foreign_text(seed: int, *, avoid: tuple[str, ...] = ()) -> tuple[str, str]:
    """The name of a language and a text in it."""
    names = [name for name in (_HELD_OUT if seed % 2 else _TUNED) if name not in avoid]
    name = names[(seed // 2) % len(names)]
    return name, FOREIGN[name]


def garble(text: str, seed: int, row: int) -> tuple[str, str]:
    """How a text was garbled, and what became of it: about as long as it was."""
    generator = random.Random(f"garble-{seed}-{row}")
    ways = (
        (_noise, _scrambled, _mojibake, _binary, _shifted)
        if seed % 2
        else (_noise, _scrambled, _mojibake, _encoded)
    )
    way = ways[(seed // 2) % len(ways)]
    return way.__name__.strip("_"), way(text, generator)


def _noise(text: str, generator: random.Random) -> str:
    """Characters of the keyboard at random."""
    signs = [chr(code) for code in range(33, 127)] + [" "] * 8
    return "".join(generator.choice(signs) for _ in text)


def _scrambled(text: str, generator: random.Random) -> str:
    """Its own characters in another order."""
    characters = list(text)
    generator.shuffle(characters)
    return "".join(characters)


def _mojibake(text: str, generator: random.Random) -> str:
    """Bytes read with the wrong alphabet."""
    return bytes((byte + 0x60 + generator.randrange(24)) % 256 for byte in text.encode()).decode(
        "cp1252", "replace"
    )


def _binary(text: str, generator: random.Random) -> str:
    """The bytes of something that is no text."""
    return generator.randbytes(len(text.encode())).decode("utf-8", "replace")


def _encoded(text: str, generator: random.Random) -> str:
    """A file in base 64."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    return "".join(generator.choice(alphabet) for _ in text)


def _shifted(text: str, generator: random.Random) -> str:
    """Every letter moved on in the alphabet."""
    by = generator.randrange(5, 21)
    return "".join(
        chr((ord(letter) - 97 + by) % 26 + 97) if "a" <= letter <= "z" else letter
        for letter in text.lower()
    )
