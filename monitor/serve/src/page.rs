//! The live page's files, which are part of the program.

/// A file of the page.
#[derive(Debug)]
pub(crate) struct File {
    /// The path of its URL.
    pub(crate) path: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// All files.
pub(crate) const FILES: [File; 11] = [
    File { path: "/", content_type: HTML, text: include_str!("../page/index.html") },
    File { path: "/style.css", content_type: CSS, text: include_str!("../page/style.css") },
    File { path: "/icon.svg", content_type: "image/svg+xml", text: include_str!("../page/icon.svg") },
    File { path: "/main.js", content_type: SCRIPT, text: include_str!("../page/main.js") },
    File { path: "/figures.js", content_type: SCRIPT, text: include_str!("../page/figures.js") },
    File { path: "/tree.js", content_type: SCRIPT, text: include_str!("../page/tree.js") },
    File { path: "/plots.js", content_type: SCRIPT, text: include_str!("../page/plots.js") },
    File { path: "/trades.js", content_type: SCRIPT, text: include_str!("../page/trades.js") },
    File { path: "/uPlot.js", content_type: SCRIPT, text: include_str!("../page/vendor/uPlot.iife.min.js") },
    File { path: "/uPlot.css", content_type: CSS, text: include_str!("../page/vendor/uPlot.min.css") },
    File {
        path: "/uPlot.LICENSE",
        content_type: "text/plain; charset=utf-8",
        text: include_str!("../page/vendor/uPlot.LICENSE"),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_only_for_its_own_files_and_has_no_inline_scripts() {
        let page = FILES[0].text;
        for attribute in ["src=\"", "href=\""] {
            for link in page.split(attribute).skip(1).filter_map(|rest| rest.split('"').next()) {
                let is_here =
                    FILES.iter().any(|file| file.path == link) || link == "/metrics" || link.starts_with('#');
                assert!(is_here, "{link}");
            }
        }
        for forbidden in ["<style", "style=\"", "onclick", "<script>", "javascript:"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        for file in FILES.iter().filter(|file| file.content_type == SCRIPT && file.path != "/uPlot.js") {
            for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!file.text.contains(forbidden), "{}: {forbidden}", file.path);
            }
        }
    }
}
