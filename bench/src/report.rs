//! The table: median, spread, ratio to the limit of the same run, goal, met or not.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

/// What was measured, over all rounds.
struct Series {
    name: String,
    unit: &'static str,
    values: Vec<f64>,
}

impl Series {
    fn median(&self) -> f64 {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }

    fn spread(&self) -> (f64, f64) {
        let least = self.values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.values.iter().copied().fold(0.0, f64::max);
        (least, most)
    }
}

/// What a goal asks of a series.
pub(crate) enum Goal {
    /// At least this many times the limit.
    AtLeast {
        /// The goal's number in the list.
        mark: &'static str,
        /// The series it is compared with.
        limit: &'static str,
        /// How many times.
        times: f64,
    },
    /// At most this.
    AtMost {
        /// The goal's number in the list.
        mark: &'static str,
        /// The most it may be.
        most: f64,
    },
    /// At most what another series is.
    AtMostOf {
        /// The goal's number in the list.
        mark: &'static str,
        /// The series it is compared with.
        limit: &'static str,
    },
    /// How it compares with a limit; the goal itself is about peers.
    Ratio {
        /// The goal's number in the list.
        mark: &'static str,
        /// The series it is compared with.
        limit: &'static str,
    },
    /// A limit, or a description.
    None,
}

pub(crate) struct Report {
    rounds: usize,
    series: Vec<(Series, Goal)>,
}

impl Report {
    pub(crate) fn new(rounds: usize) -> Self {
        Self { rounds, series: Vec::new() }
    }

    pub(crate) fn add(&mut self, name: &str, unit: &'static str, values: Vec<f64>, goal: Goal) {
        let series = Series { name: name.to_owned(), unit, values };
        self.series.push((series, goal));
    }

    fn median_of(&self, name: &str) -> f64 {
        let found = self.series.iter().find(|(series, _)| series.name == name);
        found.map_or(f64::NAN, |(series, _)| series.median())
    }

    /// The table in Markdown.
    pub(crate) fn table(&self) -> String {
        let mut out =
            String::from("| what | median | spread | goal | ratio | met |\n|---|---|---|---|---|---|\n");
        for (series, goal) in &self.series {
            let (least, most) = series.spread();
            let (asked, ratio, met) = match goal {
                Goal::None => (String::new(), String::new(), ""),
                Goal::AtMost { mark, most } => {
                    let met = series.median() <= *most;
                    (
                        format!("{mark}: ≤ {}", number(*most)),
                        String::new(),
                        if met { "yes" } else { "**no**" },
                    )
                }
                Goal::AtMostOf { mark, limit } => {
                    let ratio = series.median() / self.median_of(limit);
                    let met = if ratio <= 1.0 { "yes" } else { "**no**" };
                    (format!("{mark}: ≤ {limit}"), format!("{ratio:.2}"), met)
                }
                Goal::Ratio { mark, limit } => {
                    let ratio = series.median() / self.median_of(limit);
                    (format!("{mark}, beside {limit}"), format!("{ratio:.2}"), "")
                }
                Goal::AtLeast { mark, limit, times } => {
                    let ratio = series.median() / self.median_of(limit);
                    let met = if ratio >= *times { "yes" } else { "**no**" };
                    (format!("{mark}: ≥ {times} × {limit}"), format!("{ratio:.2}"), met)
                }
            };
            let _ = writeln!(
                out,
                "| {} | {} {} | {} – {} | {asked} | {ratio} | {met} |",
                series.name,
                number(series.median()),
                series.unit,
                number(least),
                number(most),
            );
        }
        out
    }

    /// Writes the table where a page has room for it.
    pub(crate) fn write(&self, path: &Path, section: &str) -> Result<()> {
        write_between(path, section, &format!("Medians of {} rounds.\n\n{}", self.rounds, self.table()))
    }
}

/// Writes between two marks of a page, and nothing else of it.
pub(crate) fn write_between(path: &Path, section: &str, text: &str) -> Result<()> {
    let page = std::fs::read_to_string(path)?;
    let (begins, ends) = (format!("<!-- {section} -->\n"), format!("<!-- end of {section} -->"));
    let room = page.split_once(&begins).zip(page.split_once(&ends));
    let ((before, _), (_, after)) =
        room.with_context(|| format!("{} has no room for {section}", path.display()))?;
    std::fs::write(path, format!("{before}{begins}\n{text}\n{ends}{after}"))?;
    println!("wrote {}", path.display());
    Ok(())
}

pub(crate) fn number(value: f64) -> String {
    if value >= 100.0 {
        let whole = format!("{value:.0}");
        let mut out = String::new();
        for (place, digit) in whole.chars().enumerate() {
            if place > 0 && (whole.len() - place).is_multiple_of(3) {
                out.push(',');
            }
            out.push(digit);
        }
        out
    } else {
        format!("{value:.2}")
    }
}
