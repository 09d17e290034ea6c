//! Words that do not say which place it is: what kind it is, what it serves, what a page says around it.
//!
//! Words of one line mean the same, in whatever language.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::likeness::sound;
use super::text;

/// What a word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Meaning {
    /// Which place it is.
    Telling,
    /// What it serves: by its line.
    Dish(usize),
    /// What kind of place it is: by its line.
    Kind(usize),
    /// What kind of shop: by its line.
    Shop(usize),
    /// Nothing of the place.
    Noise,
}

impl Meaning {
    /// A kind of place that is more than a restaurant.
    pub(super) fn is_special_kind(self) -> bool {
        matches!(self, Self::Kind(line) if line >= PLAIN_KINDS)
    }
}

/// So many of the kinds, from the first, are every restaurant.
const PLAIN_KINDS: usize = 4;

/// What kind of place.
const KINDS: &[&str] = &[
    "restaurant restaurants ristorante restaurante restoran restoranas restaurace restaurang ravintola etterem vendeglo \
     restauracja gasthaus gasthof gaststatte gaststaette wirtshaus hospoda hostinec pivnice kafana konoba gostilna karczma \
     csarda מסעדה מסעדת מסעדות estiatorio ресторан εστιατόριο რესტორანი רסטורנט",
    "food foods אוכל",
    "chef chefs שף",
    "mall קניון סניף branch square כיכר ככר platz namesti plaza",
    "bar bars baari בר",
    "cafe cafes caffe kafe coffee coffeehouse espresso kahvila kavarna kavana kawiarnia kavezo kohvik koffie kaffee kafeneio קפה קופי \
     אספרסו καφέ кафе",
    "grill grillroom grilli גריל",
    "kitchen kitchens cucina kuche kueche cuisine keittio kuhinja kuchnia kuchyne מטבח קיטצ'ן קיצ'ן",
    "bistro bistrot ביסטרו",
    "eatery eateries",
    "diner דיינר",
    "tavern taverna taverne טברנה ταβέρνα",
    "pub pubs פאב",
    "brasserie בראסרי",
    "trattoria טרטוריה",
    "osteria",
    "imbiss snackbar",
    "gastrobar gastropub gastro",
    "izakaya",
    "chaikhana chaihana chajhana чайхана",
    "canteen kantine столовая столовая",
    "buffet bufet",
    "lounge לאונג'",
    "foodtruck",
];

/// What a sister of a place is that is not a restaurant.
const SHOPS: &[&str] = &[
    "bakery bakehouse backerei baeckerei boulangerie בייקרי leipomo pekarna pekarstvi pekara piekarnia bageri מאפייה מאפיית מאפיה",
    "patisserie confectionery konditorei konditori cukrarna cukraszda cukiernia קונדיטוריה קונדיטורית פטיסרי",
    "deli delicatessen מעדניה מעדניית מעדנייה מעדני דלי",
    "gelateria גלידריה",
];

/// What is served, and in which style.
const DISHES: &[&str] = &[
    "pizza pizzas pizzeria pizzerias pitseria picerija pizzaria פיצריה פיצרייה פיצרית pitsa פיצה פיצות pica",
    "burger burgers hamburger hamburgers בורגר המבורגר בורגרים burgery",
    "sushi סושי",
    "shawarma shwarma shawerma shaorma שווארמה שוארמה שאוורמה",
    "falafel felafel פלאפל פלפל",
    "hummus humus houmous חומוס חמוס",
    "pasta פסטה pastas",
    "noodle noodles נודלס",
    "ramen ראמן",
    "kebab kebap kabab doner קבב קבאב",
    "steak steaks steakhouse סטקיה סטקייה סטייק סטייקים",
    "pita pitta פיתה",
    "halloumi",
    "salad salads סלט סלטים",
    "icecream gelato glida גלידה גלידת",
    "chicken עוף pollo",
    "fish דגים fisch",
    "meat meats בשר בשרים",
    "wine wines יין",
    "beer beers בירה",
    "grilled",
    "thai תאילנדי תאילנדית",
    "italian איטלקי איטלקית italiano italiana",
    "chinese סיני סינית",
    "asian אסיאתי אסייתי אסיאתית",
    "indian הודי הודית",
    "mexican מקסיקני מקסיקנית",
    "japanese יפני יפנית",
    "greek יווני יוונית",
    "georgian גאורגי",
    "vegan טבעוני טבעונית",
    "kosher כשר כשרה כשרות מהדרין למהדרין mehadrin",
    "dairy חלבי חלבית",
    "sandwich sandwiches כריך כריכים סנדוויץ' סנדוויצ'ים",
    "toast toasts טוסט",
    "bagel bagels בייגל",
    "donut donuts doughnut doughnuts דונאטס",
    "crepe crepes קרפ",
    "waffle waffles וופל",
    "cake cakes עוגות עוגה",
    "soup soups מרק מרקים",
    "taco tacos טאקו טאקוס",
    "burrito burritos",
    "schnitzel schnitzels שניצל שניצלים",
    "sabich סביח",
    "wings כנפיים",
    "ribs",
    "bbq barbecue smokehouse",
    "breakfast brunch בוקר",
    "juice juices מיץ מיצים",
    "tea תה",
    "gyros souvlaki",
    "poke",
    "bowl bowls",
    "dumpling dumplings",
    "seafood",
    "bread breads לחם",
    "fries צ'יפס",
    "hotdog",
    "wok ווק",
    "curry",
    "tapas טאפאס",
    "mezze meze מזה",
    "ramenbar",
    "cocktail cocktails קוקטיילים",
];

/// What a page says around a name.
const NOISE: &[&str] = &[
    "wolt וולט",
    "order orders ordering online delivery deliveries delivered deliver delivers takeaway takeout pickup menu menus price prices \
     from in at to for on with near nearby me official site website app review reviews rating ratings photos rest venue",
    "משלוח משלוחים המשלוחים הזמנת הזמנה הזמנות הזמינו להזמין להזמנה אונליין תפריט מחירים מ ב עד על עם אל את לבית דלת ביקורות טעים \
     עכשיו פתוח הכי דירוג מינימום שעות פתיחה דקות אתר רשמי באתר",
    "bestellen bestelle lieferung lieferdienst lieferservice liefern lassen speisekarte essen hause",
    "toimitus kotiinkuljetus kuljetus tilaa ruoka ruokaa ruokalista kotiin",
    "rozvoz objednat objednejte objednavka jidlo jidla domu doruceni jidelni listek donaska",
    "dostawa zamow pobliz poblizu ceny opinie jedzenie",
    "kiszallitas hazhozszallitas rendeles rendelj rendeld etlap etel hazhoz most",
    "dostava dostavu naruci narucite jelovnik hrane hrana iz",
    "bestil bestill bestall levering leverans hemleverans mad mat menukort meny",
    "telli kojuvedu piegade pasuti pristatymas",
    "livraison commander carte entrega pedir consegna ordina",
    "доставка еды заказать меню достава хране јеловник παραγγελία ντελίβερι μενού φαγητό デリバリー 出前 注文 メニュー მიტანა",
    "the דה and und et ja ve og och אנד of של shel by la le el il der die das am 24x7",
    "ltd limited llc inc gmbh oy ab as aps sro kft doo sp oo spzoo ug kg ag srl sl sa bv nv zrt בעמ",
    "israel ישראל district area region province county",
    "com www https http html",
];

/// Words that are one when they stand together.
const JOINED: &[(&str, &str, &str)] = &[
    ("בית", "קפה", "קפה"),
    ("בתי", "קפה", "קפה"),
    ("ice", "cream", "icecream"),
    ("hot", "dog", "hotdog"),
    ("take", "away", "takeaway"),
    ("take", "out", "takeout"),
    ("food", "truck", "foodtruck"),
    ("coffee", "shop", "coffee"),
    ("coffee", "bar", "coffee"),
    ("wine", "bar", "bar"),
    ("chef", "restaurant", "restaurant"),
    ("z", "oo", "oo"),
    ("steak", "house", "steakhouse"),
];

static MEANINGS: LazyLock<HashMap<String, Meaning>> = LazyLock::new(|| {
    let mut meanings = HashMap::new();
    let mut add = |lines: &[&str], meaning: fn(usize) -> Meaning| {
        for (line, spellings) in lines.iter().enumerate() {
            for spelling in spellings.split_whitespace() {
                meanings.insert(text::folded(spelling), meaning(line));
            }
        }
    };
    add(NOISE, |_| Meaning::Noise);
    add(DISHES, Meaning::Dish);
    add(SHOPS, Meaning::Shop);
    add(KINDS, Meaning::Kind);
    meanings
});

/// Words in Latin letters as they sound.
static SOUNDS: LazyLock<HashMap<String, Meaning>> = LazyLock::new(|| {
    let latin = MEANINGS.iter().filter(|(word, meaning)| {
        word.is_ascii() && word.len() > 4 && matches!(meaning, Meaning::Dish(_) | Meaning::Kind(_))
    });
    latin.map(|(word, meaning)| (sound(word), *meaning)).collect()
});

static PAIRS: LazyLock<HashMap<(String, String), &str>> = LazyLock::new(|| {
    JOINED.iter().map(|(one, two, both)| ((text::folded(one), text::folded(two)), *both)).collect()
});

/// What a folded word says. In Hebrew an article may stand before it.
pub(super) fn meaning(word: &str) -> Meaning {
    let known = |word: &str| MEANINGS.get(word).copied();
    let without_article = || known(word.strip_prefix('ה').filter(|rest| rest.chars().count() > 2)?);
    let by_sound =
        || if word.is_ascii() && word.len() > 4 { SOUNDS.get(&sound(word)).copied() } else { None };
    known(word).or_else(without_article).or_else(by_sound).unwrap_or(Meaning::Telling)
}

/// Words that are written in several ways and still say which place it is.
const SYNONYMS: &[(&str, &str)] =
    &[("doctor", "dr"), ("דוקטור", "dr"), ("דר", "dr"), ("נומבר", "no"), ("number", "no"), ("nr", "no")];

/// How a folded word is written otherwise.
pub(super) fn synonym(word: &str) -> Option<&'static str> {
    SYNONYMS.iter().find(|(one, _)| *one == word).map(|(_, other)| *other)
}

/// What two folded words are together, if they are one.
pub(super) fn joined(one: &str, two: &str) -> Option<&'static str> {
    // Almost no word begins such a pair.
    PAIRS.get(&(one.to_owned(), two.to_owned())).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_means_the_same_in_every_language() {
        assert_eq!(meaning("pizza"), meaning(&text::folded("פיצה")));
        assert_eq!(meaning("cafe"), meaning(&text::folded("Καφέ")));
        assert_eq!(meaning(&text::folded("המסעדה")), meaning("restaurant"));
        assert_eq!(meaning("house"), Meaning::Telling);
    }
}
