//! Cities: one has several names, and a page may lie in an area that has its own.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use super::likeness::{Likeness, rows_alike, sound};
use super::text::{self, Word};

/// Names of one city. The first is how it is shown.
const CITIES: &[&[&str]] = &[
    &[
        "Tel Aviv",
        "Tel Aviv Yafo",
        "Tel Aviv Jaffa",
        "Tel-Aviv",
        "TLV",
        "תל אביב",
        "תל אביב יפו",
        "ת\"א",
        "Jaffa",
        "Yafo",
        "יפו",
    ],
    &["Jerusalem", "י-ם", "Yerushalayim", "ירושלים", "Al Quds"],
    &["Haifa", "Hefa", "חיפה"],
    &["Beer Sheva", "ב\"ש", "Be'er Sheva", "Beersheba", "Be er Sheva", "Beer Sheba", "באר שבע"],
    &[
        "Rishon LeZion",
        "Rishon",
        "ראשון",
        "Rishon Le Zion",
        "Rishon Letzion",
        "Rishon LeTsiyon",
        "Rishon Lezzion",
        "ראשון לציון",
        "ראשל\"צ",
    ],
    &[
        "Petah Tikva",
        "פ\"ת",
        "Petach Tikva",
        "Petah Tiqwa",
        "Petach Tiqva",
        "Petah Tikwa",
        "פתח תקווה",
        "פתח תקוה",
    ],
    &["Ashdod", "אשדוד"],
    &["Ashkelon", "Ashqelon", "אשקלון"],
    &["Netanya", "Natanya", "נתניה"],
    &["Holon", "חולון"],
    &["Bat Yam", "בת ים"],
    &["Bnei Brak", "Bene Beraq", "Bney Brak", "בני ברק"],
    &["Ramat Gan", "ר\"ג", "רמת גן"],
    &["Givatayim", "Giv'atayim", "גבעתיים"],
    &["Rehovot", "Rechovot", "רחובות"],
    &["Ness Ziona", "Nes Ziona", "Nes Tziona", "Ness Tziona", "נס ציונה"],
    &["Herzliya", "Herzlia", "Herzelia", "Hertzliya", "Herzliyya", "הרצליה", "הרצלייה"],
    &["Kfar Saba", "כ\"ס", "Kefar Sava", "Kfar Sava", "כפר סבא"],
    &["Raanana", "Ra'anana", "Ra anana", "רעננה"],
    &["Hod HaSharon", "Hod Ha Sharon", "הוד השרון"],
    &["Ramat HaSharon", "Ramat Ha Sharon", "רמת השרון"],
    &[
        "Modiin",
        "Modi'in",
        "Modi in",
        "Modiin Maccabim Reut",
        "Modi'in-Maccabim-Re'ut",
        "מודיעין",
        "מודיעין מכבים רעות",
    ],
    &["Eilat", "Elat", "אילת"],
    &["Tiberias", "Tveria", "טבריה"],
    &["Nahariya", "Nahariyya", "נהריה"],
    &["Acre", "Akko", "Acco", "Akka", "עכו"],
    &["Nazareth", "Natzrat", "נצרת"],
    &["Nof HaGalil", "Nof Hagalil", "נוף הגליל"],
    &["Karmiel", "Carmiel", "כרמיאל"],
    &["Afula", "עפולה"],
    &["Hadera", "חדרה"],
    &["Yavne", "Yavneh", "יבנה"],
    &["Gan Yavne", "גן יבנה"],
    &["Gedera", "Gadera", "גדרה"],
    &["Mazkeret Batya", "מזכרת בתיה"],
    &["Kiryat Ekron", "קריית עקרון", "קרית עקרון"],
    &["Beer Yaakov", "Be'er Ya'akov", "באר יעקב"],
    &["Lod", "Lydda", "לוד"],
    &["Ramla", "Ramle", "רמלה"],
    &["Yehud", "Yehud Monosson", "יהוד", "יהוד מונוסון"],
    &["Or Yehuda", "אור יהודה"],
    &["Kiryat Ono", "Qiryat Ono", "קריית אונו", "קרית אונו"],
    &["Givat Shmuel", "Giv'at Shmuel", "גבעת שמואל"],
    &["Rosh HaAyin", "Rosh Haayin", "Rosh Ha'ayin", "ראש העין"],
    &["Kiryat Gat", "Qiryat Gat", "קריית גת", "קרית גת"],
    &["Kiryat Malakhi", "Kiryat Malachi", "קריית מלאכי", "קרית מלאכי"],
    &["Kiryat Motzkin", "Kiryat Motskin", "Qiryat Motzkin", "קריית מוצקין", "קרית מוצקין"],
    &["Kiryat Bialik", "Qiryat Bialik", "קריית ביאליק", "קרית ביאליק"],
    &["Kiryat Ata", "Qiryat Ata", "קריית אתא", "קרית אתא"],
    &["Kiryat Yam", "Qiryat Yam", "קריית ים", "קרית ים"],
    &["Kiryat Shmona", "Qiryat Shmona", "קריית שמונה", "קרית שמונה"],
    &["Kiryat Tivon", "Tivon", "קריית טבעון", "טבעון"],
    &["Nesher", "נשר"],
    &["Tirat Carmel", "Tirat HaCarmel", "טירת כרמל"],
    &["Zichron Yaakov", "Zikhron Ya'akov", "זכרון יעקב", "זיכרון יעקב"],
    &["Pardes Hanna", "Pardes Hanna Karkur", "פרדס חנה", "פרדס חנה כרכור"],
    &["Caesarea", "Kesariya", "קיסריה"],
    &["Yokneam", "Yoqneam", "Yokneam Illit", "יקנעם", "יקנעם עילית"],
    &["Migdal HaEmek", "Migdal Haemeq", "מגדל העמק"],
    &["Beit Shemesh", "Bet Shemesh", "בית שמש"],
    &["Mevaseret Zion", "Mevasseret Zion", "מבשרת ציון"],
    &["Safed", "Tzfat", "Zefat", "צפת"],
    &["Sderot", "שדרות"],
    &["Netivot", "נתיבות"],
    &["Ofakim", "אופקים"],
    &["Dimona", "דימונה"],
    &["Arad", "ערד"],
    &["Beit She'an", "Beit Shean", "בית שאן"],
    &["Rosh Pina", "Rosh Pinna", "ראש פינה"],
    &["Umm al-Fahm", "Um El Fahem", "אום אל פחם"],
    &["Elad", "אלעד"],
    &["Binyamina", "בנימינה"],
    &["Or Akiva", "אור עקיבא"],
    &["Omer", "עומר"],
    &["Rahat", "רהט"],
    &["Shefa-Amr", "Shfaram", "שפרעם"],
    &["Helsinki", "Helsingfors"],
    &["Espoo", "Esbo"],
    &["Vantaa", "Vanda"],
    &["Turku", "Abo"],
    &["Tampere", "Tammerfors"],
    &["Oulu"],
    &["Jyvaskyla"],
    &["Lahti"],
    &["Kuopio"],
    &["Stockholm"],
    &["Gothenburg", "Goteborg", "Goeteborg"],
    &["Malmo", "Malmoe"],
    &["Uppsala"],
    &["Oslo"],
    &["Bergen"],
    &["Trondheim"],
    &["Stavanger"],
    &["Copenhagen", "Kobenhavn", "Koebenhavn", "København"],
    &["Aarhus", "Arhus", "Århus"],
    &["Odense"],
    &["Aalborg", "Ålborg"],
    &["Reykjavik"],
    &["Tallinn"],
    &["Tartu"],
    &["Riga"],
    &["Vilnius"],
    &["Kaunas"],
    &["Klaipeda"],
    &["Warsaw", "Warszawa", "Варшава"],
    &["Krakow", "Cracow", "Kraków"],
    &["Wroclaw", "Wrocław", "Breslau"],
    &["Gdansk", "Gdańsk"],
    &["Poznan"],
    &["Lodz", "Łódź"],
    &["Katowice"],
    &["Prague", "Praha", "Prag"],
    &["Brno"],
    &["Ostrava"],
    &["Plzen", "Pilsen"],
    &["Bratislava"],
    &["Kosice"],
    &["Vienna", "Wien"],
    &["Graz"],
    &["Linz"],
    &["Salzburg"],
    &["Budapest"],
    &["Debrecen"],
    &["Szeged"],
    &["Pecs"],
    &["Gyor"],
    &["Berlin"],
    &["Munich", "Munchen", "Muenchen", "München"],
    &["Cologne", "Koln", "Koeln", "Köln"],
    &["Hamburg"],
    &["Frankfurt", "Frankfurt am Main"],
    &["Dusseldorf", "Duesseldorf", "Düsseldorf"],
    &["Stuttgart"],
    &["Leipzig"],
    &["Dresden"],
    &["Hanover", "Hannover"],
    &["Nuremberg", "Nurnberg", "Nuernberg"],
    &["Zurich", "Zuerich"],
    &["Geneva", "Geneve", "Genf"],
    &["Basel"],
    &["Bern"],
    &["Belgrade", "Beograd", "Београд"],
    &["Novi Sad", "Нови Сад"],
    &["Nis", "Niš"],
    &["Zagreb"],
    &["Split"],
    &["Rijeka"],
    &["Zadar"],
    &["Dubrovnik"],
    &["Osijek"],
    &["Ljubljana"],
    &["Maribor"],
    &["Sarajevo"],
    &["Skopje"],
    &["Sofia"],
    &["Bucharest", "Bucuresti", "București"],
    &["Athens", "Athina", "Αθήνα"],
    &["Thessaloniki", "Salonica", "Θεσσαλονίκη"],
    &["Patras", "Patra", "Πάτρα"],
    &["Heraklion", "Iraklio", "Iraklion", "Ηράκλειο"],
    &["Larissa", "Larisa", "Λάρισα"],
    &["Volos"],
    &["Piraeus", "Pireas", "Πειραιάς"],
    &["Nicosia", "Lefkosia", "Λευκωσία"],
    &["Limassol", "Lemesos", "Λεμεσός"],
    &["Larnaca", "Larnaka", "Λάρνακα"],
    &["Paphos", "Pafos", "Πάφος"],
    &["Valletta"],
    &["Sliema"],
    &["Tbilisi", "Tiflis", "თბილისი", "Тбилиси"],
    &["Batumi", "ბათუმი"],
    &["Kutaisi", "ქუთაისი"],
    &["Rustavi"],
    &["Baku", "Baki", "Bakı"],
    &["Yerevan"],
    &["Almaty", "Алматы"],
    &["Astana", "Nur Sultan", "Астана"],
    &["Shymkent", "Шымкент"],
    &["Karaganda", "Караганда"],
    &["Tashkent"],
    &["Tokyo", "東京"],
    &["Osaka", "大阪"],
    &["Sapporo", "札幌"],
    &["Hiroshima", "広島"],
    &["Fukuoka", "福岡"],
    &["Sendai", "仙台"],
    &["Kyoto", "京都"],
    &["Nagoya"],
    &["Kyiv", "Kiev", "Київ", "Киев"],
    &["Lviv", "Львів"],
    &["Moscow", "Moskva", "Москва"],
    &["London"],
    &["Manchester"],
    &["Paris"],
    &["Lyon"],
    &["Rome", "Roma"],
    &["Milan", "Milano"],
    &["Florence", "Firenze"],
    &["Naples", "Napoli"],
    &["Turin", "Torino"],
    &["Venice", "Venezia"],
    &["Madrid"],
    &["Barcelona"],
    &["Seville", "Sevilla"],
    &["Lisbon", "Lisboa"],
    &["Porto"],
    &["Amsterdam"],
    &["Rotterdam"],
    &["The Hague", "Den Haag"],
    &["Brussels", "Bruxelles", "Brussel"],
    &["Antwerp", "Antwerpen"],
    &["Luxembourg"],
    &["Dublin"],
    &["Edinburgh"],
    &["Istanbul"],
    &["Ankara"],
    &["Izmir"],
    &["New York", "NYC", "New York City"],
    &["Los Angeles"],
    &["San Francisco"],
    &["Chicago"],
    &["Toronto"],
    &["Sydney"],
    &["Melbourne"],
    &["Tirana", "Tirane"],
    &["Pristina", "Prishtina"],
    &["Podgorica"],
];

/// Areas by a word of their name, and the cities that lie in them.
const AREAS: &[(&str, &[&str])] = &[
    (
        "hashfela",
        &[
            "Rishon LeZion",
            "Rehovot",
            "Ness Ziona",
            "Gedera",
            "Yavne",
            "Mazkeret Batya",
            "Kiryat Ekron",
            "Beer Yaakov",
            "Lod",
            "Ramla",
            "Gan Yavne",
        ],
    ),
    (
        "shfela",
        &[
            "Rishon LeZion",
            "Rehovot",
            "Ness Ziona",
            "Gedera",
            "Yavne",
            "Mazkeret Batya",
            "Kiryat Ekron",
            "Beer Yaakov",
            "Lod",
            "Ramla",
            "Gan Yavne",
        ],
    ),
    ("lachish", &["Ashdod", "Kiryat Gat", "Kiryat Malakhi", "Gan Yavne", "Ashkelon", "Sderot"]),
    ("lakhish", &["Ashdod", "Kiryat Gat", "Kiryat Malakhi", "Gan Yavne", "Ashkelon", "Sderot"]),
    (
        "sharon",
        &["Kfar Saba", "Raanana", "Hod HaSharon", "Ramat HaSharon", "Herzliya", "Netanya", "Rosh HaAyin"],
    ),
    (
        "hasharon",
        &["Kfar Saba", "Raanana", "Hod HaSharon", "Ramat HaSharon", "Herzliya", "Netanya", "Rosh HaAyin"],
    ),
    ("krayot", &["Kiryat Motzkin", "Kiryat Bialik", "Kiryat Ata", "Kiryat Yam", "Haifa"]),
    ("jezreel", &["Afula", "Migdal HaEmek", "Nazareth", "Nof HaGalil", "Yokneam"]),
    ("yizrael", &["Afula", "Migdal HaEmek", "Nazareth", "Nof HaGalil", "Yokneam"]),
    (
        "galilee",
        &[
            "Karmiel",
            "Nahariya",
            "Acre",
            "Safed",
            "Tiberias",
            "Nazareth",
            "Nof HaGalil",
            "Rosh Pina",
            "Kiryat Shmona",
        ],
    ),
    ("negev", &["Beer Sheva", "Dimona", "Arad", "Ofakim", "Netivot"]),
];

/// A city's pages may lie under its big neighbour, if they say that they are the city's.
const NEIGHBOURS: &[(&str, &[&str])] = &[
    (
        "Tel Aviv",
        &[
            "Ramat Gan",
            "Givatayim",
            "Bnei Brak",
            "Holon",
            "Bat Yam",
            "Ramat HaSharon",
            "Kiryat Ono",
            "Or Yehuda",
            "Givat Shmuel",
        ],
    ),
    ("Petah Tikva", &["Rosh HaAyin", "Givat Shmuel", "Yehud", "Bnei Brak", "Lod", "Ramla", "Elad"]),
    (
        "Haifa",
        &[
            "Nesher",
            "Tirat Carmel",
            "Kiryat Motzkin",
            "Kiryat Bialik",
            "Kiryat Ata",
            "Kiryat Yam",
            "Kiryat Tivon",
        ],
    ),
    ("Herzliya", &["Ramat HaSharon", "Raanana"]),
    ("Kfar Saba", &["Hod HaSharon", "Raanana"]),
    ("Rishon LeZion", &["Bat Yam", "Holon", "Beer Yaakov", "Ness Ziona"]),
    ("Jerusalem", &["Mevaseret Zion", "Beit Shemesh"]),
    ("Pardes Hanna", &["Hadera", "Zichron Yaakov", "Caesarea", "Binyamina", "Or Akiva"]),
    ("Beer Sheva", &["Dimona", "Arad", "Ofakim", "Omer"]),
    ("Ashkelon", &["Sderot", "Kiryat Gat"]),
    ("Yokneam", &["Kiryat Tivon", "Migdal HaEmek"]),
    ("Helsinki", &["Espoo", "Vantaa"]),
    ("Athens", &["Piraeus"]),
];

/// Words that say that a slug names more than a city.
const AREA_WORDS: &[&str] = &["area", "region", "and", "surroundings", "metropolitan"];

/// Words of the longest name.
const NAME_WORDS_MAX: usize = 4;

static NAMES: LazyLock<HashMap<String, usize>> = LazyLock::new(|| {
    let mut names = HashMap::new();
    for (city, spellings) in CITIES.iter().enumerate() {
        for spelling in *spellings {
            names.insert(key(&text::words(spelling)), city);
        }
    }
    names
});

/// Words that a name begins with.
static FIRST_WORDS: LazyLock<HashSet<String>> =
    LazyLock::new(|| NAMES.keys().filter_map(|name| name.split(' ').next()).map(str::to_owned).collect());

/// Hebrew letters that stand before a name.
const PREFIXES: [char; 4] = ['ב', 'מ', 'ל', 'ה'];

/// The names in Latin letters, as they sound.
static SOUNDS: LazyLock<HashMap<String, usize>> = LazyLock::new(|| {
    let latin = NAMES.iter().filter(|(name, _)| name.is_ascii() && name.len() >= SOUND_MIN);
    latin.map(|(name, city)| (sound(&name.replace(' ', "")), *city)).collect()
});

/// Shorter names have no other spelling.
const SOUND_MIN: usize = 6;

/// The city of a name, by any spelling.
fn known(words: &[Word]) -> Option<usize> {
    let name = key(words);
    let by_sound = || {
        let joined = name.replace(' ', "");
        if joined.is_ascii() && joined.len() >= SOUND_MIN { SOUNDS.get(&sound(&joined)) } else { None }
    };
    NAMES.get(&name).or_else(by_sound).copied()
}

fn key(words: &[Word]) -> String {
    words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")
}

fn number(name: &str) -> Option<usize> {
    CITIES.iter().position(|spellings| spellings[0] == name)
}

/// The known city whose name begins a row of words, and how many of them it takes. In Hebrew `in` and
/// `from` are written at the word.
pub(super) fn at_start(words: &[Word]) -> Option<(usize, usize)> {
    let first = words.first()?.text.as_str();
    if !FIRST_WORDS.contains(first)
        && !first.strip_prefix(PREFIXES).is_some_and(|rest| FIRST_WORDS.contains(rest))
    {
        return None;
    }
    for count in (1..=words.len().min(NAME_WORDS_MAX)).rev() {
        let name = key(&words[..count]);
        let bare = || {
            let rest = name.strip_prefix(PREFIXES)?;
            NAMES.get(rest)
        };
        if let Some(city) = NAMES.get(&name).or_else(bare) {
            return Some((*city, count));
        }
    }
    None
}

/// A place's city.
#[derive(Clone, Debug)]
pub(super) struct City {
    /// If it is a known one.
    known: Option<usize>,
    words: Vec<Word>,
}

/// Where a page's city is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// In the city.
    Here,
    /// In an area that it belongs to: the page must not say that it is another city's.
    InArea,
    /// With its big neighbour: the page must say that it is the city's.
    NextDoor,
    /// In an area of which it is not known whether the city belongs to it.
    Unclear,
    Elsewhere,
}

impl City {
    /// The city that a text names: what stands before a comma.
    pub(super) fn of(text: &str) -> Option<Self> {
        // A Japanese city may say that it is one.
        let first = text
            .trim_end_matches('市')
            .split([',', '('])
            .find(|part| text::words(part).iter().any(|word| !word.is_number()))?;
        let words: Vec<Word> = text::words(first).into_iter().filter(|word| !word.is_number()).collect();
        let known = known(&words);
        // "Tel Aviv Israel", "Tel Aviv 6433222".
        let known = known.or_else(|| {
            let (city, count) = at_start(&words)?;
            let rest = &words[count..];
            rest.iter().all(|word| !word.is_telling() || word.is_number()).then_some(city)
        });
        (!words.is_empty()).then_some(Self { known, words })
    }

    /// The city that a part of a path names.
    pub(super) fn of_slug(slug: &[Word]) -> Option<Self> {
        let (known, words) = (known(slug), slug.to_vec());
        (!words.is_empty()).then_some(Self { known, words })
    }

    /// The city of an address: the last part of it that is a known one.
    pub(super) fn of_address(address: &str) -> Option<Self> {
        let parts: Vec<&str> = address.split(',').collect();
        parts.iter().enumerate().rev().find_map(|(nth, part)| {
            // A street may have a city's name.
            let city = Self::of(part).filter(|city| city.known.is_some() && (nth > 0 || parts.len() == 1))?;
            Some(city)
        })
    }

    /// How many words, from the first of a row on, are its name; none: 0.
    pub(super) fn named_at_start(&self, words: &[Word]) -> usize {
        if let Some((city, count)) = at_start(words) {
            return if Some(city) == self.known { count } else { 0 };
        }
        // By the spelling that it was asked for with.
        if words.len() >= self.words.len()
            && words.iter().zip(&self.words).all(|(one, other)| one.text == other.text)
        {
            return self.words.len();
        }
        if self.known.is_some() {
            return 0;
        }
        let ours: Vec<&Word> = self.words.iter().collect();
        (1..=words.len().min(NAME_WORDS_MAX))
            .rev()
            .find(|count| {
                let theirs: Vec<&Word> = words[..*count].iter().collect();
                rows_alike(&ours, &theirs) == Likeness::Same
            })
            .unwrap_or(0)
    }

    /// Whether a row of words names it anywhere.
    pub(super) fn is_named_in(&self, words: &[Word]) -> bool {
        (0..words.len()).any(|at| self.named_at_start(&words[at..]) > 0)
    }

    /// Where a page is whose path names a city with this slug.
    pub(super) fn whereabouts(&self, slug: &[Word]) -> Whereabouts {
        if self.is_named_in(slug) {
            return Whereabouts::Here;
        }
        let theirs = at_start(slug);
        let listed = theirs.is_some_and(|(_, count)| count == slug.len());
        let area = AREAS.iter().find(|(word, _)| !listed && slug.iter().any(|part| part.text == *word));
        let is_area = area.is_some();
        let Some(ours) = self.known else {
            let ours: Vec<&Word> = self.words.iter().collect();
            if rows_alike(&ours, &slug.iter().collect::<Vec<_>>()) != Likeness::Different {
                return Whereabouts::Here;
            }
            let wide = is_area || slug.iter().any(|word| AREA_WORDS.contains(&word.text.as_str()));
            return if wide { Whereabouts::Unclear } else { Whereabouts::Elsewhere };
        };
        if let Some((_, cities)) = area
            && cities.iter().any(|name| number(name) == Some(ours))
        {
            return Whereabouts::InArea;
        }
        // A spelling of a known city that is not listed.
        if !listed && !is_area {
            let theirs: Vec<&Word> = slug.iter().collect();
            let alike = CITIES[ours].iter().any(|spelling| {
                let spelling = text::words(spelling);
                rows_alike(&spelling.iter().collect::<Vec<_>>(), &theirs) != Likeness::Different
            });
            if alike {
                return Whereabouts::Here;
            }
        }
        let next_door = NEIGHBOURS.iter().any(|(big, small)| {
            theirs.map(|(city, _)| city) == number(big) && small.iter().any(|name| number(name) == Some(ours))
        });
        if next_door { Whereabouts::NextDoor } else { Whereabouts::Elsewhere }
    }

    /// A word of a path without the city's name, which may be written at it.
    pub(super) fn trim_end(&self, word: &str) -> Option<String> {
        let spellings = CITIES[self.known?].iter().filter(|spelling| spelling.is_ascii());
        let mut names = spellings.map(|spelling| spelling.to_lowercase().replace([' ', '-', '\''], ""));
        let rest = names.find_map(|name| word.strip_suffix(&name).map(str::to_owned))?;
        (rest.len() > 2).then_some(rest)
    }

    /// Whether it is one of those that are known.
    pub(super) fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Whether a known city is another one.
    pub(super) fn is_not(&self, other: usize) -> bool {
        self.known != Some(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whereabouts(city: &str, slug: &str) -> Whereabouts {
        City::of(city).expect("a city").whereabouts(&text::slug(slug))
    }

    #[test]
    fn a_city_has_several_names() {
        for (city, slug) in [
            ("Tel Aviv-Yafo, Israel", "tel-aviv"),
            ("תל אביב", "tel-aviv"),
            ("Be'er Sheva", "beer-sheva"),
            ("Gedera", "rishon-lezion-hashfela-area"),
            ("Ashdod", "ashdod-and-lachish-area"),
            ("פתח תקווה", "petah-tikva"),
            ("München", "munich"),
            ("Praha 1", "prague"),
            ("כפר יונה", "kfar-yona"),
            ("Hertzeliya", "herzliya"),
            ("Αθήνα", "athens"),
        ] {
            assert!(
                matches!(whereabouts(city, slug), Whereabouts::Here | Whereabouts::InArea),
                "{city} {slug}"
            );
        }
    }

    #[test]
    fn another_city_is_another() {
        for (city, slug) in [
            ("Tel Aviv", "haifa"),
            ("Jerusalem", "rishon-lezion-hashfela-area"),
            ("Kfar Yona", "kfar-saba"),
            ("Helsinki", "espoo"),
            ("Haifa", "tel-aviv"),
            ("חולון", "ramat-gan"),
        ] {
            assert_eq!(whereabouts(city, slug), Whereabouts::Elsewhere, "{city} {slug}");
        }
        assert_eq!(whereabouts("Ramat Gan", "tel-aviv"), Whereabouts::NextDoor);
        assert_eq!(whereabouts("Somewhere", "north-and-south-area"), Whereabouts::Unclear);
    }

    #[test]
    fn an_address_has_a_city() {
        let city = City::of_address("Jerusalem St 5, Haifa, Israel").expect("a city");
        assert_eq!(city.whereabouts(&text::slug("haifa")), Whereabouts::Here);
    }
}
